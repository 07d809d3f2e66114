"""Who writes what: each element once, by a process that holds it, on any mesh of any processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from meshes import leaves_on, level, meshes, state_on

from jaxckpt._types import Box
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.abstract_mesh import device_mesh, mesh_partition
from jaxckpt.layout.chunking import chunk_box, grid_positions
from jaxckpt.layout.partition import Replica, host_partition, partition_of_boxes, whole_box
from jaxckpt.layout.save_plan import ASSEMBLE, ArrayLeaf, PlannedChunk, SavePlan, plan_save


def check_leaf(leaf: ArrayLeaf, plan: SavePlan, chunks: list[PlannedChunk]) -> None:
    """Each element once; the grid is regular; sources hold what is read from them."""
    part, shape = leaf.partition, plan.chunk_shapes[leaf.number]
    count = np.zeros(part.shape, int)
    held = dict(zip(part.boxes, part.replicas, strict=True))
    positions = grid_positions(part.shape, shape)
    assert plan.chunk_count(leaf.number) == len(positions) == len(chunks)
    for chunk in chunks:
        assert positions[chunk.number] == chunk.position
        full = chunk_box(chunk.position, shape)
        assert chunk.box == full.intersect(whole_box(part.shape))
        assert chunk.region.intersect(chunk.box) == chunk.box
        assert chunk.nbytes == math.prod(shape) * DTYPES[leaf.dtype].itemsize
        assert plan.owners[plan.starts[leaf.number] + chunk.number] == chunk.process
        count[chunk.box.slices_within(whole_box(part.shape))] += 1
        if chunk.device == ASSEMBLE:
            assert chunk.region == whole_box(part.shape)
            assert all(chunk.process in {r.process for r in group} for group in held.values())
        else:
            assert Replica(chunk.process, chunk.device) in held[chunk.region]
        for axis, (a, b) in enumerate(zip(chunk.box.start, chunk.box.stop, strict=True)):
            # Only along an axis that is whole in every region a chunk may be shorter.
            assert b - a == shape[axis] or part.counts[axis] == 1
    assert (count == 1).all()


@given(st.data(), st.sampled_from([64, 1000, 20_000, 1 << 20]))
def test_every_element_is_written_once_by_a_process_that_holds_it(
    data: Any, chunk_bytes: int
) -> None:
    mesh = data.draw(meshes())
    leaves = data.draw(leaves_on(mesh))
    plan = plan_save(leaves, chunk_bytes)
    processes = range(mesh.devices.size // mesh.devices_per_process + 1)
    owned = {p: plan.owned_by(p) for p in processes}
    for chunks in owned.values():
        assert chunks == sorted(chunks, key=lambda c: (c.leaf, c.number))
    for leaf in leaves:
        chunks = [c for own in owned.values() for c in own if c.leaf == leaf.number]
        check_leaf(leaf, plan, chunks)
    for process, chunks in owned.items():
        assert sum(c.nbytes for c in chunks) == plan.process_bytes.get(process, 0)
    assert plan.nbytes == sum(plan.process_bytes.values())
    assert plan.digest() == plan_save(leaves, chunk_bytes).digest()


def test_plans_of_equal_content_are_equal_whatever_objects_they_are_made_of() -> None:
    """Another process may have made one mesh where this one made two, or the other way round."""
    arrays = [((96, 64), ("a", None)), ((4096, 96), (None, "b")), ((7,), ())] * 20
    axes = {"a": 3, "b": 2, "c": 4}
    one = device_mesh(axes, 2)
    plan = plan_save(state_on(one, arrays), 1 << 20)
    apart = [
        ArrayLeaf(n, mesh_partition(device_mesh(axes, 2), spec, shape), "float32")
        for n, (shape, spec) in enumerate(arrays * 3)
    ]
    assert plan_save(apart, 1 << 20).digest() == plan.digest()
    other = state_on(device_mesh(axes, 4), arrays)
    assert plan_save(other, 1 << 20).digest() != plan.digest()
    assert plan.digest().hex() == "1725fc2438c669158c4391b9832366af"


def test_regions_that_are_no_grid() -> None:
    """Not what jax makes today: every region keeps one source."""
    boxes = [Box((0, 0), (64, 96)), Box((64, 0), (96, 32)), Box((64, 32), (96, 96))]
    groups = [[Replica(0, 0), Replica(1, 2)], [Replica(1, 3)], [Replica(0, 1), Replica(1, 4)]]
    part = partition_of_boxes((96, 96), boxes, groups)
    assert list(part.boxes) == boxes
    assert list(map(list, part.replicas)) == groups
    leaf = ArrayLeaf(
        3,
        partition_of_boxes(
            (9600, 96),
            [
                Box(
                    tuple(100 * n if i == 0 else n for i, n in enumerate(b.start)),
                    tuple(100 * n if i == 0 else n for i, n in enumerate(b.stop)),
                )
                for b in boxes
            ],
            groups,
        ),
        "float32",
    )
    plan = plan_save([leaf], 1 << 20)
    check_leaf(leaf, plan, plan.owned_by(0) + plan.owned_by(1))


def test_host_values_stay_with_the_process_that_stands_for_all() -> None:
    leaves = [ArrayLeaf(n, host_partition((300, 1000), n % 3), "float32") for n in range(6)]
    plan = plan_save(leaves, 64 << 20)
    for process in range(3):
        chunks = plan.owned_by(process)
        assert [c.leaf for c in chunks] == [process, process + 3]
        assert {c.device for c in chunks} == {-1}


def test_numbers_of_leaves_may_have_gaps_and_any_order() -> None:
    mesh = device_mesh({"a": 2}, 1)
    leaves = [
        ArrayLeaf(n, mesh_partition(mesh, ("a",), (shape,)), "int8")
        for n, shape in [(7, 4), (2, 0), (5, 200_000), (1, 6)]
    ]
    plan = plan_save(leaves, 10_000)
    chunks = plan.owned_by(0) + plan.owned_by(1)
    assert {c.leaf for c in chunks} == {1, 5, 7}
    assert plan.chunk_count(2) == 0
    for leaf in leaves:
        check_leaf(leaf, plan, [c for c in chunks if c.leaf == leaf.number])


def test_the_devices_of_a_process_share_the_reads() -> None:
    """Each reads one part of its region without gaps."""
    mesh = device_mesh({"x": 8}, 4)
    plan = plan_save(state_on(mesh, [((1024, 1024), ())], ["float32"]), 64 << 10)
    devices = [c.device for c in plan.owned_by(0)]
    assert devices == sorted(devices)
    assert {d: devices.count(d) for d in devices} == {0: 8, 1: 8, 2: 8, 3: 8}
    whole = plan_save(state_on(mesh, [((256, 1024), ())] * 64, ["float32"]), 64 << 20)
    devices = [c.device for c in whole.owned_by(1)]
    assert len(devices) == 32
    assert {d: devices.count(d) for d in devices} == {4: 8, 5: 8, 6: 8, 7: 8}


def test_a_job_of_a_thousand_hosts() -> None:
    """What is counted at the scale at which plans matter; each process lists only its own."""
    mesh = device_mesh({"data": 4, "pipe": 32, "tensor": 64}, 8)
    d = 8192
    arrays = [
        ((64, d, 4 * d), ("pipe", None, "tensor")),
        ((64, 4 * d, d), ("pipe", "tensor", None)),
        ((64, d, d), ("pipe", None, "tensor")),
        ((64, d), ("pipe",)),
        ((131072, d), ("tensor",)),
        ((d,), ()),
    ]
    leaves = state_on(mesh, arrays, ["bfloat16", "float32", "float32", "float32"])
    plan = plan_save(leaves, 64 << 20)
    assert level(plan, 1024) <= 1.05
    counts = np.zeros(plan.owners.size, int)
    for process in range(0, 1024, 16):
        for chunk in plan.owned_by(process):
            counts[plan.starts[chunk.leaf] + chunk.number] += 1
    assert ((counts == 1) == (plan.owners % 16 == 0)).all()
    for leaf in leaves:
        size = math.prod(leaf.partition.shape) * DTYPES[leaf.dtype].itemsize
        chunk = math.prod(plan.chunk_shapes[leaf.number]) * DTYPES[leaf.dtype].itemsize
        assert plan.chunk_count(leaf.number) * chunk == size
