"""Partitions on devices that need not exist, to size and simulate jobs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.layout.partition import Holders, Partition

AxisSpec = str | tuple[str, ...] | None
"""What cuts an axis of an array: an axis of the mesh, several (the first is the slowest), none."""


@dataclass(frozen=True, eq=False)
class DeviceMesh:
    """Device numbers in a grid with named axes.

    Attributes:
        axes: lengths by name.
        devices: their numbers; the shape is that of ``axes``.
        devices_per_process: device n belongs to process ``n // devices_per_process``.
    """

    axes: dict[str, int]
    devices: NDArray[np.int32]
    devices_per_process: int


def device_mesh(
    axes: Mapping[str, int], devices_per_process: int, order: Sequence[int] | None = None
) -> DeviceMesh:
    """A mesh of some devices.

    Args:
        order: the devices' numbers in C order of the mesh; from 0 on by default.
    """
    count = math.prod(axes.values())
    numbers = np.arange(count) if order is None else np.asarray(order)
    if numbers.size != count:
        raise ValueError(f"{numbers.size} devices do not fill a mesh of {count}")
    devices = numbers.astype(np.int32).reshape(tuple(axes.values()))
    return DeviceMesh(dict(axes), devices, devices_per_process)


def mesh_partition(mesh: DeviceMesh, spec: Sequence[AxisSpec], shape: tuple[int, ...]) -> Partition:
    """What ``partition_of`` gives for ``NamedSharding(mesh, PartitionSpec(*spec))``.

    Raises:
        ValueError: the mesh does not divide the shape.
    """
    if len(spec) > len(shape):
        raise ValueError(f"{tuple(spec)} has more axes than the shape {shape}")
    counts: list[int] = []
    names: list[str] = []
    for axis, n in enumerate(shape):
        entry = spec[axis] if axis < len(spec) else None
        own = () if entry is None else (entry,) if isinstance(entry, str) else entry
        k = math.prod(mesh.axes[name] for name in own)
        if n % k:
            raise ValueError(f"{k} tiles do not divide axis {axis} of {shape}")
        if n == 0:  # nothing is there to be cut: all tiles would be the same
            own, k = (), 1
        counts.append(k)
        names += own
    return Partition(shape, tuple(counts), _holders(mesh, tuple(names)))


@functools.lru_cache(maxsize=1024)
def _holders(mesh: DeviceMesh, names: tuple[str, ...]) -> Holders:
    places = list(mesh.axes)
    cut = [places.index(name) for name in names]
    rest = [axis for axis in range(len(places)) if axis not in cut]
    tiles = math.prod(mesh.axes[name] for name in names)
    device = np.sort(mesh.devices.transpose(*cut, *rest).reshape(tiles, -1), axis=1)
    return Holders(device // np.int32(mesh.devices_per_process), device)
