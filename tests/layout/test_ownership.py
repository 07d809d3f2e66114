"""How level a deal is, and that nothing is cut to pieces without need."""

from __future__ import annotations

import itertools
import math

import pytest
from meshes import Shape, level, state_on

from jaxckpt.layout.abstract_mesh import AxisSpec, device_mesh
from jaxckpt.layout.save_plan import plan_save

Arrays = list[tuple[Shape, tuple[AxisSpec, ...]]]


def mlp(width: int) -> Arrays:
    sizes = [784, width, width, width, 10]
    pairs = itertools.pairwise(sizes)
    return [a for m, n in pairs for a in (((m, n), ()), ((n,), ()))]


def transformer(vocabulary: int, d: int, layers: int, spec: tuple[AxisSpec, ...] = ()) -> Arrays:
    columns = tuple(reversed(spec))
    arrays: Arrays = [((vocabulary, d), ()), ((1024, d), ())]
    for _ in range(layers):
        arrays += [((d, 3 * d), spec), ((d, d), columns), ((d, 4 * d), spec), ((4 * d, d), columns)]
        arrays += [((d,), ()), ((d,), ()), ((3 * d,), ()), ((4 * d,), ())]
    return arrays


STATES: dict[str, Arrays] = {
    "mlp": mlp(512),
    "wide mlp": mlp(2048),
    "gpt2": transformer(50257, 768, 12),
    "odd": transformer(32003, 769, 5),
    "one layer": transformer(50257, 768, 1),
    "embedding": [((50257, 768), ()), ((768,), ())],
    "stacked": [((12, 768, 3072), ()), ((12, 3072, 768), ()), ((12, 768), ()), ((50257, 768), ())],
    "many small": [((n % 50 + 1, 16), ()) for n in range(5000)],
    "vector": [((10_000_019,), ())],
    "layers of one": [((1, 1009, 1013), ())],
    "few large": [((4096, 4096), ()), ((4096, 4096), ()), ((4096, 4097), ())],
    "image": [((3, 3, 512, 512), ())] * 5 + [((7, 7, 3, 64), ()), ((2048, 1000), ())],
}


@pytest.mark.parametrize("dtypes", [["float32"], ["bfloat16", "float32", "float32", "float32"]])
@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", STATES)
def test_replicas_share_the_work(name: str, replicas: int, dtypes: list[str]) -> None:
    mesh = device_mesh({"x": replicas}, 1)
    plan = plan_save(state_on(mesh, STATES[name], dtypes), 64 << 20)
    assert level(plan, replicas) <= 1.05
    raw = sum(math.prod(shape) for shape, _ in STATES[name])
    sizes = {"float32": 4, "bfloat16": 2}
    assert plan.nbytes <= 1.01 * raw * sum(sizes[d] for d in dtypes)


@pytest.mark.parametrize(
    "shape", [(1009, 1013), (50257, 768), (4096, 4096), (64, 16384), (3, 99991)]
)
@pytest.mark.parametrize("replicas", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 64 << 20])
def test_one_array(shape: Shape, replicas: int, chunk_bytes: int) -> None:
    mesh = device_mesh({"x": replicas}, 1)
    plan = plan_save(state_on(mesh, [(shape, ())], ["float32"]), chunk_bytes)
    assert level(plan, replicas) <= 1.05
    assert math.prod(plan.chunk_shapes[0]) * 4 <= chunk_bytes
    assert plan.nbytes <= 1.01 * math.prod(shape) * 4
    for process in range(replicas):
        numbers = [c.number for c in plan.owned_by(process)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


@pytest.mark.parametrize(
    ("axes", "per_process", "spec"),
    [
        ({"data": 4, "model": 2}, 1, (None, "model")),
        ({"data": 4, "model": 2}, 2, (None, "model")),
        ({"data": 2, "model": 8}, 4, ("model", None)),
        ({"data": 6, "model": 2}, 1, (None, "model")),
        ({"data": 8}, 1, ("data", None)),
        ({"data": 8}, 2, ("data", None)),
        ({"data": 3, "fsdp": 4}, 2, ("fsdp", None)),
        ({"data": 3, "fsdp": 4}, 1, ("fsdp", None)),
        ({"data": 2, "fsdp": 4, "model": 2}, 4, ("fsdp", "model")),
        ({"data": 256}, 8, ()),
    ],
)
@pytest.mark.parametrize("vocabulary", [32000, 50257])
def test_mixed_shardings(
    axes: dict[str, int], per_process: int, spec: tuple[AxisSpec, ...], vocabulary: int
) -> None:
    mesh = device_mesh(axes, per_process)
    processes = math.prod(axes.values()) // per_process
    plan = plan_save(state_on(mesh, transformer(vocabulary, 768, 6, spec)), 64 << 20)
    assert level(plan, processes) <= 1.05


@pytest.mark.parametrize("replicas", [100, 1024])
def test_many_replicas(replicas: int) -> None:
    arrays = transformer(50257, 4096, 4)
    plan = plan_save(state_on(device_mesh({"data": replicas}, 1), arrays), 64 << 20)
    assert level(plan, replicas) <= 1.05


def test_a_replica_group_fills_up_what_others_have_more() -> None:
    """Some arrays lie on the first process only; the others make up for it."""
    alone = device_mesh({"x": 1}, 1)
    mesh = device_mesh({"x": 4}, 1)
    leaves = state_on(alone, [((512, 1024), ())] * 2, ["float32"])
    shared = state_on(mesh, [((2048, 1024), ())] * 2, ["float32"])
    leaves += [type(leaf)(leaf.number + 2, leaf.partition, leaf.dtype) for leaf in shared]
    assert level(plan_save(leaves, 64 << 20), 4) <= 1.05


def test_regions_are_dealt_whole_where_that_is_level() -> None:
    """A sixteenth of the state each: no process could write less than a whole number of them."""
    mesh = device_mesh({"data": 4, "model": 2}, 1)
    leaves = state_on(mesh, [((1024, 1024), (None, "model"))] * 16, ["float32"])
    plan = plan_save(leaves, 64 << 20)
    assert plan.owners.size == 32
    assert level(plan, 8) == 1
    # A region of several chunks stays together.
    plan = plan_save(leaves, 1 << 20)
    assert plan.owners.size == 64
    for leaf in leaves:
        own = plan.owners[plan.starts[leaf.number] :][:4].reshape(2, 2)
        assert own[0, 0] == own[1, 0] or own[0, 0] == own[0, 1]
        assert len(set(own.ravel().tolist())) == 2


def test_only_large_regions_are_cut() -> None:
    mesh = device_mesh({"x": 4}, 1)
    arrays: Arrays = [((50257, 768), ()), *([((768, 768), ())] * 40)]
    plan = plan_save(state_on(mesh, arrays, ["float32"]), 64 << 20)
    assert level(plan, 4) <= 1.05
    assert plan.chunk_count(0) == 4
    assert all(plan.chunk_count(n) == 1 for n in range(1, 41))
    alone = plan_save(state_on(device_mesh({"x": 1}, 1), arrays, ["float32"]), 64 << 20)
    assert all(alone.chunk_count(n) == 1 for n in range(1, 41))


def test_pieces_are_not_cut_below_64_kib() -> None:
    mesh = device_mesh({"x": 64}, 1)
    plan = plan_save(state_on(mesh, [((1024, 1024), ())], ["float32"]), 64 << 20)
    assert plan.chunk_shapes[0] == (16, 1024)
    plan = plan_save(state_on(mesh, [((512, 1024), ())], ["float32"]), 64 << 20)
    assert plan.chunk_shapes[0] == (16, 1024)
