"""Who writes which chunk: decided before any I/O, the same on every process, with no message."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import Box
from jaxckpt.layout.chunking import WHOLE_LEAF_BYTES, choose_chunk_shape, grid_counts
from jaxckpt.layout.kinds import ArrayLeaf, Cut, kinds_of
from jaxckpt.layout.ownership import deal_kinds
from jaxckpt.layout.partition import whole_box

ASSEMBLE = -2
"""Device number of a chunk that is put together from several devices of its process."""


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """One chunk to write.

    Attributes:
        leaf: the leaf's number.
        number: the chunk's place in its leaf's grid, in C order.
        position: in the leaf's chunk grid.
        box: the chunk's region, cut to the array.
        region: the region of the leaf that its source holds; ``box`` lies inside.
        nbytes: of the raw elements that are stored: a whole chunk also where ``box`` is cut.
        process: the one that writes it.
        device: whose shard is read; -1 for a host value, ``ASSEMBLE`` for several shards.
    """

    leaf: int
    number: int
    position: tuple[int, ...]
    box: Box
    region: Box
    nbytes: int
    process: int
    device: int


@dataclass(frozen=True, eq=False)
class SavePlan:
    """The owner of each chunk of each array.

    Attributes:
        chunk_shapes: by leaf number.
        starts: by leaf number, the row of its first chunk in ``owners``.
        owners: the process of every chunk: leaf after leaf, the chunks in C order of the grid.
        process_bytes: how much each process writes; those that write nothing are absent.
        nbytes: the sum.
        cuts: how leaves with elements are cut, by leaf number.
    """

    chunk_shapes: dict[int, tuple[int, ...]]
    starts: dict[int, int]
    owners: NDArray[np.int32]
    process_bytes: dict[int, int]
    nbytes: int
    cuts: dict[int, Cut]

    def chunk_count(self, leaf: int) -> int:
        """How many chunks a leaf has; none without elements."""
        cut = self.cuts.get(leaf)
        return 0 if cut is None else len(cut.kind.groups.of_region) * math.prod(cut.chunks)

    def owned_by(self, process: int) -> list[PlannedChunk]:
        """The chunks that a process writes, in order of leaf and number."""
        rows = np.flatnonzero(self.owners == process)
        leaves = list(self.starts)
        begins = np.array(list(self.starts.values()), np.int64)
        # Leaves without chunks begin where the next one does, which is found.
        of_rows = np.searchsorted(begins, rows, side="right") - 1
        numbers: list[int] = (rows - begins[of_rows]).tolist()
        alike: dict[int, tuple[Cut, list[tuple[int, int]]]] = {}
        for place, number in zip(of_rows.tolist(), numbers, strict=True):
            cut = self.cuts[leaves[place]]
            alike.setdefault(id(cut), (cut, []))[1].append((leaves[place], number))
        chunks = [c for cut, own in alike.values() for c in _chunks(cut, own, process)]
        return sorted(chunks, key=lambda c: (c.leaf, c.number))

    def digest(self) -> bytes:
        """The same for equal plans, on every process and in every run."""
        text = repr((list(self.chunk_shapes.items()), list(self.starts.items())))
        owners = self.owners.astype("<i4").tobytes()
        return hashlib.blake2b(text.encode() + owners, digest_size=16).digest()


def plan_save(leaves: Sequence[ArrayLeaf], chunk_bytes: int) -> SavePlan:
    """Cuts arrays into chunks and gives each chunk to one process that holds it.

    All chunks of a region go to one process, except where regions are too large for level loads;
    see `ownership.py`.
    """
    dealt = deal_kinds(kinds_of(leaves), chunk_bytes)
    cuts = {leaves[place].number: cut for cut in dealt.cuts for place in cut.kind.leaves}
    shapes: dict[int, tuple[int, ...]] = {}
    starts: dict[int, int] = {}
    owners = [np.zeros(0, np.int32)]
    row = 0
    for place, leaf in enumerate(leaves):
        cut = cuts.get(leaf.number)
        starts[leaf.number] = row
        if cut is None:
            shapes[leaf.number] = choose_chunk_shape(leaf.partition, 1, chunk_bytes)
        else:
            shapes[leaf.number] = cut.chunk_shape
            owners.append(_in_grid(dealt.owners[place], cut))
            row += owners[-1].size
    process_bytes = {p: n for p, n in enumerate(dealt.loads[:-1].tolist()) if n}
    nbytes = sum(process_bytes.values())
    return SavePlan(shapes, starts, np.concatenate(owners), process_bytes, nbytes, cuts)


def _in_grid(owners: NDArray[np.int32], cut: Cut) -> NDArray[np.int32]:
    """From owners of units, region by region, to those of all chunks of the leaf's grid."""
    tiles = cut.kind.partition.counts
    if cut.kind.assembled or math.prod(cut.chunks) == 1:
        return owners.reshape(-1)
    # Axes of length 1 are left out: numpy has no room for twice the axes of an array.
    outer = [i for i, n in enumerate(tiles) if n > 1]
    inner = [i for i, n in enumerate(cut.chunks) if n > 1]
    lengths = [tiles[i] for i in outer] + [cut.chunks[i] for i in inner]
    units = np.broadcast_to(owners, (owners.shape[0], math.prod(cut.chunks))).reshape(lengths)
    axes = [(i, 0) for i in outer] + [(i, 1) for i in inner]
    return units.transpose(sorted(range(len(axes)), key=lambda k: axes[k])).reshape(-1)


def _chunks(cut: Cut, own: list[tuple[int, int]], process: int) -> list[PlannedChunk]:
    """A process's chunks of leaves that are cut alike, from the numbers of leaf and chunk.

    The chunks of a region are read from all devices of the process that hold it, from each one
    part without gaps; which device is first differs from region to region, so that those that are
    one chunk are spread as well.
    """
    places = _places(cut, sorted({number for _, number in own}))
    sources = {p.tile: _source(cut, p.tile, process) for p in places.values()}
    counts = Counter((leaf, places[number].tile) for leaf, number in own)
    seen: Counter[tuple[int, int]] = Counter()
    spread = cut.region_bytes > WHOLE_LEAF_BYTES
    nbytes = cut.chunk_bytes
    chunks: list[PlannedChunk] = []
    for leaf, number in own:
        position, box, tile = places[number]
        region, devices = sources[tile]
        device = devices[0]
        if len(devices) > 1 and spread:
            key = leaf, tile
            part = seen[key] * len(devices) // counts[key]
            device = devices[(leaf + tile + part) % len(devices)]
            seen[key] += 1
        chunks.append(PlannedChunk(leaf, number, position, box, region, nbytes, process, device))
    return chunks


class _Place(NamedTuple):
    """A chunk's place in its leaf."""

    position: tuple[int, ...]
    box: Box
    tile: int


def _places(cut: Cut, numbers: list[int]) -> dict[int, _Place]:
    part, chunk = cut.kind.partition, np.array(cut.chunk_shape, np.int64)
    grid = grid_counts(part.shape, cut.chunk_shape)
    # Without axes there is nothing to unravel.
    unraveled = np.unravel_index(numbers, grid) if grid else np.zeros((0, len(numbers)))
    positions = np.array(unraveled, np.int64).T
    starts = positions * chunk
    stops = np.minimum(starts + chunk, np.array(part.shape, np.int64))
    strides = np.array([math.prod(part.counts[i + 1 :]) for i in range(len(grid))], np.int64)
    tiles: list[int] = (positions // np.array(cut.chunks, np.int64) @ strides).tolist()
    columns = zip(positions.tolist(), starts.tolist(), stops.tolist(), tiles, strict=True)
    return {
        number: _Place(tuple(position), Box(tuple(start), tuple(stop)), tile)
        for number, (position, start, stop, tile) in zip(numbers, columns, strict=True)
    }


def _source(cut: Cut, tile: int, process: int) -> tuple[Box, list[int]]:
    """The region that a tile belongs to, and the process's devices that hold it."""
    part = cut.kind.partition
    if cut.kind.assembled:
        return whole_box(part.shape), [ASSEMBLE]
    return part.box_of(tile), part.holders.devices_on(tile, process)
