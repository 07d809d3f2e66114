"""Which region of an array lies on which device of which process."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jaxckpt._types import Box


@dataclass(frozen=True, slots=True)
class Replica:
    """A device that holds a region, and the process that it belongs to."""

    process: int
    device: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The distinct regions of an array, and for each its replica group.

    Attributes:
        shape: the array's shape.
        boxes: disjoint, together the whole array; in order of their start.
        replicas: for each box the devices that hold it, in order of process and device.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    replicas: tuple[tuple[Replica, ...], ...]


@functools.lru_cache(maxsize=4096)
def whole_box(shape: tuple[int, ...]) -> Box:
    """The region of a whole array."""
    return Box((0,) * len(shape), shape)


def host_partition(shape: tuple[int, ...], process: int = 0) -> Partition:
    """A value in host memory, the same on every process; ``process`` stands for all."""
    return Partition(shape, (whole_box(shape),), ((Replica(process, -1),),))
