"""Who writes which chunk: decided before any I/O, the same on every process, with no message."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxckpt._types import Box
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.chunking import choose_chunk_shape, chunk_box, grid_positions
from jaxckpt.layout.partition import Partition, Replica, whole_box

ASSEMBLE = -2
"""Device number of a chunk that is put together from several devices of its process."""


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """An array to save, as the planner sees it: the leaf's number, its partition and dtype."""

    number: int
    partition: Partition
    dtype: str


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """One chunk to write.

    Attributes:
        leaf: the leaf's number.
        number: in C order of the leaf's chunk grid.
        position: in the leaf's chunk grid.
        box: the chunk's region of the leaf.
        region: the region of the leaf that its source holds; ``box`` lies inside.
        nbytes: of the raw elements.
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


@dataclass(frozen=True, slots=True)
class SavePlan:
    """All chunks of all processes, and the chunk shape of each array by leaf number."""

    chunks: tuple[PlannedChunk, ...]
    chunk_shapes: dict[int, tuple[int, ...]]
    starts: dict[int, int]
    owners: np.ndarray
    nbytes: int

    def owned_by(self, process: int) -> list[PlannedChunk]:
        """The chunks that a process writes, in the order in which they lie on disk."""
        return [c for c in self.chunks if c.process == process]

    def chunk_count(self, leaf: int) -> int:
        return sum(c.leaf == leaf for c in self.chunks)

    def digest(self) -> bytes:
        import hashlib

        return hashlib.sha256(repr((self.chunks, self.chunk_shapes)).encode()).digest()


def plan_save(leaves: Sequence[ArrayLeaf], chunk_bytes: int) -> SavePlan:
    """Cuts arrays into chunks and gives each chunk to one process that holds it.

    Among the processes that hold a chunk, the one with the fewest bytes so far writes it; chunks
    that only one process holds are counted first, so that replicated ones fill up the others.
    """
    cut = [(leaf, *_cut_leaf(leaf.partition, leaf.dtype, chunk_bytes)) for leaf in leaves]
    load: dict[int, int] = {}
    for _, _, pieces in cut:
        for piece in pieces:
            processes = piece.processes
            if len(processes) == 1:
                load[processes[0]] = load.get(processes[0], 0) + piece.nbytes
    chunks: list[PlannedChunk] = []
    starts: dict[int, int] = {}
    for leaf, _, pieces in cut:
        starts[leaf.number] = len(chunks)
        for number, piece in enumerate(pieces):
            processes = piece.processes
            process = processes[0]
            if len(processes) > 1:
                process = min(processes, key=lambda p: (load.get(p, 0), p))
                load[process] = load.get(process, 0) + piece.nbytes
            device = piece.device_on(process)
            chunks.append(
                PlannedChunk(
                    leaf.number,
                    number,
                    piece.position,
                    piece.box,
                    piece.region,
                    piece.nbytes,
                    process,
                    device,
                )
            )
    return SavePlan(
        tuple(chunks),
        {leaf.number: shape for leaf, shape, _ in cut},
        starts,
        np.array([c.process for c in chunks], np.int32),
        sum(c.nbytes for c in chunks),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    position: tuple[int, ...]
    box: Box
    region: Box
    nbytes: int
    replicas: tuple[Replica, ...]
    processes: tuple[int, ...]

    def device_on(self, process: int) -> int:
        return next(r.device for r in self.replicas if r.process == process)


@functools.lru_cache(maxsize=4096)
def _cut_leaf(
    partition: Partition, dtype: str, chunk_bytes: int
) -> tuple[tuple[int, ...], tuple[_Piece, ...]]:
    itemsize = DTYPES[dtype].itemsize
    shape = choose_chunk_shape(partition, itemsize, chunk_bytes)
    nbytes = math.prod(shape) * itemsize
    if 0 in partition.shape:
        return shape, ()
    if shape == tuple(max(1, n) for n in partition.shape) and len(partition.boxes) > 1:
        held = set.intersection(*({r.process for r in g} for g in partition.replicas))
        everything = whole_box(partition.shape)
        pieces = [
            _Piece(
                (0,) * len(shape),
                everything,
                everything,
                nbytes,
                tuple(Replica(p, ASSEMBLE) for p in sorted(held)),
                tuple(sorted(held)),
            )
        ]
        return shape, tuple(pieces)
    regions = list(zip(partition.boxes, partition.replicas, strict=True))
    found: dict[tuple[int, ...], _Piece] = {}
    for region, replicas in regions:
        processes = tuple(sorted({r.process for r in replicas}))
        first = tuple(a // c for a, c in zip(region.start, shape, strict=True))
        for local in grid_positions(region.shape, shape):
            position = tuple(a + b for a, b in zip(first, local, strict=True))
            box = chunk_box(position, shape)
            found[position] = _Piece(position, box, region, nbytes, replicas, processes)
    return shape, tuple(found[p] for p in sorted(found))
