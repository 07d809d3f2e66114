"""Regions in equal pieces: which cuts are made, and the limits on padding and size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.layout.cutting import cut_region, divisors

Shape = tuple[int, ...]
MANY = 1 << 40


@pytest.mark.parametrize(
    ("shape", "free", "wanted", "share", "piece"),
    [
        ((32768, 8192), (True, True), 16, 1, (2048, 8192)),
        # No divisor: a shorter piece at the end, where no other region follows.
        ((50257, 768), (True, True), 3, 3, (16753, 768)),
        ((1009, 1013), (True, True), 4, 4, (253, 1013)),
        ((1009, 10133), (False, True), 4, 1, (1009, 2534)),
        ((1009, 1013), (False, False), 4, 4, None),
        # Whole leading axes are used up first: each piece is one run.
        ((12, 50257, 768), (True, True, True), 5, 5, (1, 10052, 768)),
        ((2, 20480, 10240), (False, True, False), 30, 6, (1, 1366, 10240)),
        ((2, 20480, 10240), (False, False, False), 27, 1, (1, 1280, 10240)),
        # Rows of a few elements are no way to share a region.
        ((50257, 4096), (False, True), 1024, 1024, None),
        ((), (), 1, 1, ()),
        ((), (), 2, 2, None),
    ],
)
def test_examples(
    shape: Shape, free: tuple[bool, ...], wanted: int, share: int, piece: Shape | None
) -> None:
    assert cut_region(shape, free, wanted, share, MANY) == piece


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 300),
    st.integers(1, 12),
    st.integers(1, 1000),
)
def test_every_cut_is_within_its_limits(
    axes: list[tuple[int, bool]], wanted: int, share: int, most: int
) -> None:
    shape, free = tuple(n for n, _ in axes), tuple(f for _, f in axes)
    piece = cut_region(shape, free, wanted, share, most)
    if piece is None:
        return
    counts = [-(-n // c) for n, c in zip(shape, piece, strict=True)]
    pieces = math.prod(counts)
    assert all(1 <= c <= n for n, c in zip(shape, piece, strict=True))
    assert wanted <= pieces <= max(1, most)
    assert pieces % share == 0
    uneven = [n % c != 0 for n, c in zip(shape, piece, strict=True)]
    assert not any(u and not f for u, f in zip(uneven, free, strict=True))
    padded = math.prod(k * c for k, c in zip(counts, piece, strict=True))
    assert padded <= 1.01 * math.prod(shape)
    # Less than a row for each piece: only the last one is shorter.
    for n, c, k in zip(shape, piece, counts, strict=True):
        assert 0 <= k * c - n < k


@given(st.integers(1, 5000))
def test_divisors(n: int) -> None:
    assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
