"""Which region of an array lies on which device of which process."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import Box
from jaxckpt.layout.groups import ProcessGroups, process_groups


@dataclass(frozen=True, slots=True)
class Replica:
    """A device that holds a region, and the process that it belongs to."""

    process: int
    device: int


@dataclass(frozen=True, eq=False)
class Holders:
    """The replica groups of all tiles, in columns; arrays that are cut alike share one.

    Attributes:
        process, device: a row for each tile, in order of process and device. Where tiles have
            replica groups of several sizes, the smaller ones repeat their last replica.
    """

    process: NDArray[np.int32]
    device: NDArray[np.int32]

    @functools.cached_property
    def key(self) -> bytes:
        """The same for the same content, on every process."""
        shape = repr(self.process.shape).encode()
        return hashlib.blake2b(
            shape + self.process.tobytes() + self.device.tobytes(), digest_size=16
        ).digest()

    @functools.cached_property
    def groups(self) -> ProcessGroups:
        """The distinct sets of processes."""
        return process_groups(self.process)

    def devices_on(self, tile: int, process: int) -> list[int]:
        """The devices of a process that hold a tile."""
        row = self.device[tile][self.process[tile] == process]
        return list(dict.fromkeys(row.tolist()))

    def replicas(self, tile: int) -> tuple[Replica, ...]:
        """The replica group of a tile."""
        pairs = zip(self.process[tile].tolist(), self.device[tile].tolist(), strict=True)
        return tuple(Replica(p, d) for p, d in dict.fromkeys(pairs))


@dataclass(frozen=True, eq=False)
class Partition:
    """The distinct regions of an array, and for each its replica group.

    Attributes:
        shape: the array's shape.
        counts: into how many equal tiles each axis is cut.
        holders: of each tile, in C order.
        regions: None where the tiles are the regions, as in everything that jax cuts itself;
            else boxes and replica groups of regions that consist of several tiles.
        region_of: then the number of each tile's region.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    holders: Holders
    regions: tuple[tuple[Box, ...], tuple[tuple[Replica, ...], ...]] | None = None
    region_of: NDArray[np.int64] | None = None

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of a tile."""
        return tuple(n // max(1, k) for n, k in zip(self.shape, self.counts, strict=True))

    @functools.cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The regions: disjoint, together the whole array; in order of their start."""
        if self.regions is not None:
            return self.regions[0]
        return tuple(self.box_of(i) for i in range(math.prod(self.counts)))

    @functools.cached_property
    def replicas(self) -> tuple[tuple[Replica, ...], ...]:
        """For each box the devices that hold it, in order of process and device."""
        if self.regions is not None:
            return self.regions[1]
        return tuple(self.holders.replicas(i) for i in range(math.prod(self.counts)))

    def box_of(self, tile: int) -> Box:
        """The region that a tile belongs to."""
        if self.regions is not None and self.region_of is not None:
            return self.regions[0][int(self.region_of[tile])]
        start: list[int] = []
        for n, k in zip(reversed(self.tile), reversed(self.counts), strict=True):
            tile, place = divmod(tile, k)
            start.append(place * n)
        start.reverse()
        return Box(tuple(start), tuple(a + n for a, n in zip(start, self.tile, strict=True)))


def partition_of_boxes(
    shape: tuple[int, ...], boxes: Sequence[Box], replicas: Sequence[Sequence[Replica]]
) -> Partition:
    """The partition of any disjoint boxes that together are the whole array."""
    order = sorted(range(len(boxes)), key=lambda i: (boxes[i].start, boxes[i].stop))
    found = tuple(boxes[i] for i in order)
    members = tuple(tuple(sorted(replicas[i], key=lambda r: (r.process, r.device))) for i in order)
    steps = [_step([e for b in found for e in (b.start[a], b.stop[a])]) for a in range(len(shape))]
    counts = tuple(n // k for n, k in zip(shape, steps, strict=True))
    holders = _holders(members)
    if 0 not in shape and len(found) == math.prod(counts):
        return Partition(shape, counts, holders)
    region_of = np.zeros(counts, np.int64)
    for number, box in enumerate(found):
        region_of[
            tuple(slice(a // k, b // k) for a, b, k in zip(box.start, box.stop, steps, strict=True))
        ] = number
    tiles = region_of.reshape(-1)
    of_tiles = Holders(holders.process[tiles], holders.device[tiles])
    return Partition(shape, counts, of_tiles, (found, members), tiles)


@functools.lru_cache(maxsize=4096)
def whole_box(shape: tuple[int, ...]) -> Box:
    """The region of a whole array."""
    return Box((0,) * len(shape), shape)


def host_partition(shape: tuple[int, ...], process: int = 0) -> Partition:
    """A value in host memory, the same on every process; ``process`` stands for all."""
    return Partition(shape, (1,) * len(shape), _host_holders(process))


@functools.lru_cache(maxsize=64)
def _host_holders(process: int) -> Holders:
    return _holders(((Replica(process, -1),),))


def _holders(members: Sequence[Sequence[Replica]]) -> Holders:
    most = max((len(group) for group in members), default=0)
    rows = [[*group, *[group[-1]] * (most - len(group))] for group in members]
    process = np.array([[r.process for r in row] for row in rows], np.int32)
    device = np.array([[r.device for r in row] for row in rows], np.int32)
    return Holders(process.reshape(len(rows), most), device.reshape(len(rows), most))


def _step(edges: list[int]) -> int:
    return max(1, math.gcd(*edges))
