"""Into which chunks an array is cut: the regular grid that all its regions fit."""

from __future__ import annotations

import itertools
import math

from jaxckpt._types import Box
from jaxckpt.layout.partition import Partition

WHOLE_LEAF_BYTES = 64 << 10
"""An array up to this size is one chunk, where one process holds all of it."""
_SMALLEST_PIECE_FACTOR = 16


def choose_chunk_shape(partition: Partition, itemsize: int, max_bytes: int) -> tuple[int, ...]:
    """The chunk shape of an array's Zarr grid.

    It divides every region of the partition evenly, so that a chunk belongs to one region. It is
    at most ``max_bytes`` where the divisors of the region's shape allow that without cutting it
    into far more pieces than its bytes ask for.
    """
    shape = partition.shape
    if math.prod(shape) * itemsize <= WHOLE_LEAF_BYTES and _one_process_holds_all(partition):
        return tuple(max(1, n) for n in shape)
    cell = [_common_step(partition, axis) for axis in range(len(shape))]
    pieces = -(-math.prod(cell) * itemsize // max_bytes)
    return tuple(n // k for n, k in zip(cell, _split(cell, pieces), strict=True))


def grid_positions(shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All positions of the chunk grid, in C order; none for an array without elements."""
    counts = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    return list(itertools.product(*map(range, counts)))


def chunk_box(position: tuple[int, ...], chunk: tuple[int, ...]) -> Box:
    """The region of the chunk at a position."""
    start = tuple(p * c for p, c in zip(position, chunk, strict=True))
    return Box(start, tuple(a + c for a, c in zip(start, chunk, strict=True)))


def positions_meeting(box: Box, chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Positions of the chunks that share elements with a region."""
    ranges = [range(a // c, -(-b // c)) for a, b, c in zip(box.start, box.stop, chunk, strict=True)]
    return list(itertools.product(*ranges))


def _one_process_holds_all(partition: Partition) -> bool:
    held = [{r.process for r in group} for group in partition.replicas]
    return not held or bool(set.intersection(*held))


def _common_step(partition: Partition, axis: int) -> int:
    edges = {b.start[axis] for b in partition.boxes} | {b.stop[axis] for b in partition.boxes}
    return max(1, math.gcd(*edges)) if edges else max(1, partition.shape[axis])


def _split(cell: list[int], pieces: int) -> tuple[int, ...]:
    """How often to cut each axis: at least ``pieces`` in all, as few as the divisors allow.

    Cuts of leading axes keep a chunk contiguous in its region, so they win among equals. Where
    only prime axes remain and the cut would make far too many pieces, the region stays whole.
    """
    best = (1,) * len(cell)
    if pieces <= 1:
        return best
    options: list[tuple[int, tuple[int, ...]]] = []
    for first in range(len(cell)):
        for k in _divisors(cell[first]):
            rest = -(-pieces // k)
            cut = [1] * len(cell)
            cut[first] = k
            if rest > 1:
                if first + 1 == len(cell):
                    continue
                more = [d for d in _divisors(cell[first + 1]) if d >= rest]
                if not more:
                    continue
                cut[first + 1] = more[0]
            options.append((math.prod(cut), tuple(cut)))
    if options:
        count, cut = min(options, key=lambda o: (o[0], [-c for c in o[1]]))
        if count <= _SMALLEST_PIECE_FACTOR * pieces:
            return cut
    return best


def _divisors(n: int) -> list[int]:
    low = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return low + [n // k for k in reversed(low) if k * k != n]
