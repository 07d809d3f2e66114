"""From jax's shardings to partitions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxckpt._types import Box
from jaxckpt.layout.partition import Holders, Partition, Replica, partition_of_boxes


@functools.lru_cache(maxsize=4096)
def partition_of(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], process_of: Callable[[Any], int]
) -> Partition:
    """The partition that a sharding makes of a shape; the same on every process.

    Args:
        process_of: the process of a device.
    """
    if isinstance(sharding, jax.sharding.NamedSharding) and 0 not in shape:
        tile = sharding.shard_shape(shape)
        counts = tuple(n // k for n, k in zip(shape, tile, strict=True))
        return Partition(shape, counts, _holders(sharding, counts, process_of))
    return _by_devices(sharding, shape, process_of)


@functools.lru_cache(maxsize=1024)
def _holders(
    sharding: jax.sharding.NamedSharding,
    counts: tuple[int, ...],
    process_of: Callable[[Any], int],
) -> Holders:
    """Who holds the tiles. An array of one element for each tile is cut like all the others, so
    that jax is asked once and not for each shape.
    """
    return _by_devices(sharding, counts, process_of).holders


def _by_devices(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], process_of: Callable[[Any], int]
) -> Partition:
    groups: dict[tuple[Any, ...], list[Replica]] = {}
    boxes: list[Box] = []
    for device, index in sharding.devices_indices_map(shape).items():
        key = tuple((s.start, s.stop) for s in index)
        group = groups.get(key)
        if group is None:
            group = groups[key] = []
            boxes.append(box_of_index(index, shape))
        group.append(Replica(process_of(device), device.id))
    merged: dict[Box, list[Replica]] = {}
    for box, group in zip(boxes, groups.values(), strict=True):
        merged.setdefault(box, []).extend(group)
    return partition_of_boxes(shape, list(merged), list(merged.values()))


def box_of_index(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """The region that a tuple of slices with step 1 selects."""
    start = tuple(s.start or 0 for s in index)
    stop = tuple(n if s.stop is None else s.stop for s, n in zip(index, shape, strict=True))
    return Box(start, stop)
