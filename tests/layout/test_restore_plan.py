"""Runs in memory, and reads that are joined."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt._types import Box, Span
from jaxckpt.layout.partition import whole_box
from jaxckpt.layout.restore_plan import COALESCE_READ_BYTES, coalesce, contiguous_offset


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
