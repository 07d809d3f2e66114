"""How a region is cut into equal pieces: by divisors, or with a shorter piece at the end."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

SMALLEST_PIECE_BYTES = 64 << 10
"""Regions that are cut to deal them evenly are not cut into smaller pieces."""
_FEW = 2
_MANY = 16
_PADDING = 0.01
_TRIES = 8
_SHORT_ROW = 512  # elements; copies of shorter ones cost more than level loads gain
_SHORT = 6


class _Cut(NamedTuple):
    """One possibility; the least is the best.

    Attributes:
        rank: see ``_rank``.
    """

    rank: int
    pieces: int
    padding: int
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=16384)
def cut_region(
    shape: tuple[int, ...],
    free: tuple[bool, ...],
    wanted: int,
    share: int,
    most: int,
    *,
    short_rows: bool = False,
) -> tuple[int, ...] | None:
    """The shape of the pieces, or None where there is no good cut.

    In this order: exact pieces that are one run of the region each, up to twice as many as wanted;
    such pieces with a shorter one at the end, under 1 % of padding; exact ones that are no runs;
    these with shorter ones at an end; exact ones, up to 16 times as many as wanted; pieces of
    short rows, if allowed. Among equals the fewest pieces.

    Args:
        shape: of the region.
        free: the axes along which the region is the whole array; only there an end may be uneven.
        wanted: the least number of pieces.
        share: the number of pieces is a multiple of this.
        most: the largest number of pieces.
        short_rows: allow pieces that consist of rows of under 512 elements.
    """
    wanted = -(-wanted // share) * share
    if wanted == 1:
        return shape
    if wanted > most:
        return None
    most = min(most, _MANY * wanted)
    worst = _SHORT + 1 if short_rows else _SHORT - 1
    cuts = _cuts(shape, free, wanted, share)
    best = min((c for c in cuts if c.pieces <= most and c.rank <= worst), default=None)
    return best.shape if best is not None else None


def _cuts(
    shape: tuple[int, ...], free: tuple[bool, ...], wanted: int, share: int
) -> Iterator[_Cut]:
    for axis, length in enumerate(shape):
        before, behind = math.prod(shape[:axis]), shape[axis + 1 :]
        # Axes in front that are cut to single elements leave every piece in one run.
        for leading in {1, before}:
            front = shape[:axis] if leading == 1 else (1,) * axis
            run = leading == before
            for k in _fitting(length, leading, wanted, share):
                pieces = leading * k
                rank = _rank(run, pieces, wanted, length // k * math.prod(behind))
                yield _Cut(rank, pieces, 0, (*front, length // k, *behind))
            if free[axis]:
                for rows, k in _uneven(length, leading, wanted, share):
                    rank = 1 + _rank(run, 0, wanted, rows * math.prod(behind))
                    yield _Cut(rank, leading * k, k * rows - length, (*front, rows, *behind))
        if behind:
            for k in divisors(length)[1:-1]:
                for more in _fitting(behind[0], k, wanted, share)[:1]:
                    inner = (behind[0] // more, *behind[1:])
                    rank = _rank(False, k * more, wanted, math.prod(inner))
                    yield _Cut(rank, k * more, 0, (*shape[:axis], length // k, *inner))


def _rank(run: bool, pieces: int, wanted: int, row: int) -> int:
    """How good an exact cut is; one with an uneven end comes next."""
    if not run and row < _SHORT_ROW:
        return _SHORT
    if pieces > _FEW * wanted:
        return 4
    return 0 if run else 2


def _uneven(length: int, leading: int, wanted: int, share: int) -> Iterator[tuple[int, int]]:
    """Lengths of pieces that do not divide the axis but nearly, and how many they are."""
    step = share // math.gcd(share, leading)
    first = -(-wanted // leading)
    first = -(-first // step) * step
    for k in range(first, min(length, first + _TRIES * step) + 1, step):
        for rows in {-(-length // k), length // k}:
            count = -(-length // rows)
            if count % step == 0 and count >= first and count * rows - length < _PADDING * length:
                yield rows, count


def _fitting(length: int, times: int, wanted: int, share: int) -> list[int]:
    """Divisors of a length that make enough pieces, the least of them first."""
    found = divisors(length)
    first = bisect.bisect_left(found, -(-wanted // times))
    if share == 1:
        return found[first : first + 1]
    return [k for k in found[first:] if times * k % share == 0][:1]


@functools.lru_cache(maxsize=4096)
def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    low = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return low + [n // k for k in reversed(low) if k * k != n]
