"""Into which chunks an array is cut: the regular grid that all its regions fit."""

from __future__ import annotations

import itertools
import math

from jaxckpt._types import Box
from jaxckpt.layout.cutting import SMALLEST_PIECE_BYTES, cut_region
from jaxckpt.layout.partition import Partition

WHOLE_LEAF_BYTES = 64 << 10
"""An array up to this size is one chunk, where one process holds all of it."""


def is_whole(partition: Partition, itemsize: int) -> bool:
    """Whether an array is stored as one chunk because it is small."""
    nbytes = math.prod(partition.shape) * itemsize
    return nbytes <= WHOLE_LEAF_BYTES and partition.holders.groups.common is not None


def choose_chunk_shape(partition: Partition, itemsize: int, max_bytes: int) -> tuple[int, ...]:
    """The chunk shape of an array whose regions are dealt whole.

    It divides every region, so that a chunk belongs to one; only along an axis that is not
    sharded the last chunk may be shorter. It is at most ``max_bytes`` where that is possible
    without far more pieces than its bytes ask for.
    """
    if 0 in partition.shape or is_whole(partition, itemsize):
        return tuple(max(1, n) for n in partition.shape)
    tile = partition.tile
    wanted = -(-math.prod(tile) * itemsize // max_bytes)
    most = math.prod(tile)
    return cut_region(tile, free_axes(partition), wanted, 1, most, short_rows=True) or tile


def split_chunk_shape(
    partition: Partition, itemsize: int, max_bytes: int, share: int
) -> tuple[int, ...] | None:
    """A chunk shape that cuts every region into a multiple of ``share`` chunks, if there is one."""
    tile = partition.tile
    nbytes = math.prod(tile) * itemsize
    wanted = max(share, -(-nbytes // max_bytes))
    most = nbytes // SMALLEST_PIECE_BYTES
    return cut_region(tile, free_axes(partition), wanted, share, most)


def fine_chunk_shape(partition: Partition, itemsize: int, max_bytes: int) -> tuple[int, ...] | None:
    """A chunk shape of about ``max_bytes``, but not below the smallest size of pieces."""
    tile = partition.tile
    nbytes = math.prod(tile) * itemsize
    most = nbytes // SMALLEST_PIECE_BYTES
    wanted = max(1, min(most, -(-nbytes // max(1, max_bytes))))
    free = free_axes(partition)
    # Where no cut makes so many pieces and not smaller ones, fewer are better than none.
    fewer = sorted({wanted, wanted * 3 // 4, wanted // 2, wanted // 4}, reverse=True)
    cuts = (cut_region(tile, free, k, 1, most) for k in fewer if k)
    return next((cut for cut in cuts if cut is not None), None)


def free_axes(partition: Partition) -> tuple[bool, ...]:
    """The axes along which every region is as long as the array."""
    return tuple(k == 1 for k in partition.counts)


def grid_counts(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    """How many chunks the grid has along each axis."""
    return tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))


def grid_positions(shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All positions of the chunk grid, in C order; none for an array without elements."""
    return list(itertools.product(*map(range, grid_counts(shape, chunk))))


def chunk_box(position: tuple[int, ...], chunk: tuple[int, ...]) -> Box:
    """The region of the chunk at a position."""
    start = tuple(p * c for p, c in zip(position, chunk, strict=True))
    return Box(start, tuple(a + c for a, c in zip(start, chunk, strict=True)))


def positions_meeting(box: Box, chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Positions of the chunks that share elements with a region."""
    ranges = [range(a // c, -(-b // c)) for a, b, c in zip(box.start, box.stop, chunk, strict=True)]
    return list(itertools.product(*ranges))
