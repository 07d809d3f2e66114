"""From jax's shardings to partitions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxckpt._types import Box
from jaxckpt.layout.partition import Partition, Replica


@functools.lru_cache(maxsize=4096)
def partition_of(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], process_of: Callable[[Any], int]
) -> Partition:
    """The partition that a sharding makes of a shape; the same on every process."""
    groups: dict[Box, list[Replica]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        groups.setdefault(box_of_index(index, shape), []).append(
            Replica(process_of(device), device.id)
        )
    boxes = sorted(groups, key=lambda b: b.start)
    members = tuple(tuple(sorted(groups[b], key=lambda r: (r.process, r.device))) for b in boxes)
    return Partition(shape, tuple(boxes), members)


def box_of_index(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """The region that a tuple of slices with step 1 selects."""
    start = tuple(s.start or 0 for s in index)
    stop = tuple(n if s.stop is None else s.stop for s, n in zip(index, shape, strict=True))
    return Box(start, stop)
