"""Who writes what: each element once, level by bytes, on any mesh of any processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt._types import Box, Span
from jaxckpt.layout.chunking import choose_chunk_shape, chunk_box, grid_positions, positions_meeting
from jaxckpt.layout.partition import Partition, Replica, whole_box
from jaxckpt.layout.restore_plan import COALESCE_READ_BYTES, coalesce, contiguous_offset
from jaxckpt.layout.save_plan import ArrayLeaf, plan_save


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    """An even split of an array over processes with some devices each, with replicas."""
    splits = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=0, max_size=2))
    cells = [draw(st.integers(1, 6)) for _ in splits]
    scale = draw(st.sampled_from([1, 1, 3]))
    shape = tuple(s * c * scale for s, c in zip(splits, cells, strict=True))
    replicas = draw(st.integers(1, 4))
    per_process = draw(st.integers(1, 4))
    device = 0
    boxes, groups = [], []
    for position in np.ndindex(*splits):
        start = tuple(p * c * scale for p, c in zip(position, cells, strict=True))
        boxes.append(Box(start, tuple(a + c * scale for a, c in zip(start, cells, strict=True))))
        groups.append(
            tuple(Replica((device + r) // per_process, device + r) for r in range(replicas))
        )
        device += replicas
    return Partition(shape, tuple(boxes), tuple(groups))


def counted(leaf: ArrayLeaf, chunks: list[Any]) -> np.ndarray:
    count = np.zeros(leaf.partition.shape, int)
    for chunk in chunks:
        count[tuple(slice(a, b) for a, b in zip(chunk.box.start, chunk.box.stop, strict=True))] += 1
    return count


@given(
    st.lists(partitions(), min_size=1, max_size=6),
    st.sampled_from(["float32", "int8"]),
    st.sampled_from([64, 1000, 1 << 20]),
)
def test_every_element_is_written_once_by_a_process_that_holds_it(
    parts: list[Partition], dtype: str, chunk_bytes: int
) -> None:
    leaves = [ArrayLeaf(i, part, dtype) for i, part in enumerate(parts)]
    plan = plan_save(leaves, chunk_bytes)
    for leaf in leaves:
        chunks = [c for c in plan.chunks if c.leaf == leaf.number]
        assert (counted(leaf, chunks) == 1).all()
        for chunk in chunks:
            holders = [
                {r.process for r in group}
                for box, group in zip(leaf.partition.boxes, leaf.partition.replicas, strict=True)
                if box.intersect(chunk.box)
            ]
            assert all(chunk.process in h for h in holders)
            assert chunk_box(chunk.position, plan.chunk_shapes[leaf.number]) == chunk.box
            assert chunk.region.intersect(chunk.box) == chunk.box
    processes = {c.process for c in plan.chunks}
    assert sum(len(plan.owned_by(p)) for p in processes) == len(plan.chunks)
    assert plan == plan_save(leaves, chunk_bytes)


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_replicas_share_the_work_evenly(replicas: int) -> None:
    """One device for each process, all of them with everything."""
    leaves = []
    for i in range(64):
        shape = (256, 512)
        group = tuple(Replica(p, p) for p in range(replicas))
        leaves.append(ArrayLeaf(i, Partition(shape, (whole_box(shape),), (group,)), "float32"))
    plan = plan_save(leaves, 64 << 10)
    loads = [sum(c.nbytes for c in plan.owned_by(p)) for p in range(replicas)]
    assert max(loads) / (sum(loads) / replicas) <= 1.05
    assert sum(loads) == 64 * 256 * 512 * 4


@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(10, 20))
def test_chunks_divide_the_shard_and_are_small_where_divisors_allow(
    shape: list[int], log2: int
) -> None:
    whole = tuple(shape)
    box = whole_box(whole)
    part = Partition(whole, (box,), ((Replica(0, 0),),))
    chunk = choose_chunk_shape(part, 4, 1 << log2)
    assert all(n % c == 0 for n, c in zip(whole, chunk, strict=True))
    if math.prod(whole) * 4 <= 64 << 10:
        assert chunk == whole
    positions = grid_positions(whole, chunk)
    assert len(positions) == math.prod(whole) // math.prod(chunk)
    assert positions_meeting(box, chunk) == positions


def test_the_default_chunk_of_a_large_matrix() -> None:
    shape = (32768, 8192)
    part = Partition(shape, (whole_box(shape),), ((Replica(0, 0),),))
    assert choose_chunk_shape(part, 4, 64 << 20) == (2048, 8192)


@given(st.data())
def test_contiguous_runs(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    inner_start, inner_stop = [], []
    for n in shape:
        a = data.draw(st.integers(0, n - 1))
        inner_start.append(a)
        inner_stop.append(data.draw(st.integers(a + 1, n)))
    inner = Box(tuple(inner_start), tuple(inner_stop))
    array = np.arange(math.prod(shape)).reshape(shape)
    part = array[inner.slices_within(whole_box(shape))].reshape(-1)
    offset = contiguous_offset(inner, whole_box(shape))
    is_run = (np.diff(part) == 1).all()
    if offset is not None:
        assert is_run
        assert part[0] == offset
    if part.size == array.size:
        assert offset == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 10**7), st.integers(1, 200_000)),
        max_size=30,
    )
)
def test_coalesced_reads_cover_every_span_once(spans: list[tuple[str, int, int]]) -> None:
    made = [(Span(*s), i) for i, s in enumerate(spans)]
    reads = coalesce(made)
    found = {}
    for span, members in reads:
        for number, offset in members:
            found[number] = Span(span.file, span.offset + offset, made[number][0].length)
            assert found[number].end <= span.end
        assert len(members) == 1 or span.length <= COALESCE_READ_BYTES
    assert found == {i: s for s, i in made}
