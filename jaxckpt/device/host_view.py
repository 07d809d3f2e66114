"""From an array on devices to its elements in host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxckpt._types import Box
from jaxckpt.device.cutting import cut, needs_cut, prepare
from jaxckpt.layout.save_plan import ASSEMBLE, PlannedChunk
from jaxckpt.layout.shardings import box_of_index


def host_chunk(source: Any, chunk: PlannedChunk) -> np.ndarray:
    """The elements of a chunk of this process.

    Blocks until they are there. Off an accelerator come only the chunk's own bytes: a part of a
    shard is cut out on the device, by a function that was compiled for all parts of that shape.
    On the CPU backend it is a view of the device's own memory; it must be dropped before the array
    is donated.
    """
    if chunk.device >= 0 and chunk.box != chunk.region:
        shard = shard_on(source, chunk.device)
        if needs_cut(shard):
            start = tuple(a - b for a, b in zip(chunk.box.start, chunk.region.start, strict=True))
            return np.asarray(cut(shard, start, chunk.box.shape))
    return host_region(source, chunk.device)[chunk.box.slices_within(chunk.region)]


def look_at(source: Any, chunk: PlannedChunk) -> Callable[[], np.ndarray]:
    """Takes hold of a chunk of an array on CPU devices without copying it.

    Blocks until its elements are there. What comes back gives them later, also when the array was
    deleted or donated meanwhile: jax leaves the memory alone.
    """
    if chunk.device != ASSEMBLE:
        view = host_chunk(source, chunk)
        return lambda: view
    parts = _parts(source)
    region, shape, dtype = chunk.box.slices_within(chunk.region), source.shape, source.dtype
    return lambda: _assembled(parts, shape, dtype)[region]


def prepare_chunk(source: Any, chunk: PlannedChunk) -> None:
    """Compiles what `host_chunk` needs for this chunk, if anything."""
    if chunk.device >= 0 and chunk.box != chunk.region:
        shard = shard_on(source, chunk.device)
        if needs_cut(shard):
            prepare(shard, chunk.box.shape)


def shard_on(source: Any, device: int) -> jax.Array:
    """The shard of an array on one of this process's devices, as an array of its own."""
    if not source.is_fully_replicated or len(source.sharding.device_set) == 1:
        shard = source.addressable_data(_position(source.sharding, device))
        if shard.device.id == device:
            return shard
    # Ten times slower, for a thousand leaves some 50 ms: it makes the index of each shard.
    for shard in source.addressable_shards:
        if shard.device.id == device:
            return shard.data
    raise LookupError(f"device {device} holds no shard")


@functools.lru_cache(maxsize=4096)
def _position(sharding: jax.sharding.Sharding, device: int) -> int:
    """Where the shard on a device most likely is among those of this process."""
    ids = [d.id for d in sharding._addressable_device_assignment]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return ids.index(device) if device in ids else 0


def host_region(source: Any, device: int) -> np.ndarray:
    """The region of ``source`` that a plan names by its device.

    Blocks until the elements are there. On the CPU backend a shard comes back as a view of the
    device's own memory; it must be dropped before the array is donated.

    Args:
        source: an array of this process, addressable on ``device``.
        device: a device id, -1 for a host array, ``ASSEMBLE`` to put all shards together.
    """
    if device == -1:
        return source
    if device == ASSEMBLE:
        return _assembled(_parts(source), source.shape, source.dtype)
    return _to_numpy(shard_on(source, device))


def _parts(source: Any) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    """The distinct regions of an array in this process, and where they belong."""
    wanted = _one_device_each(source.sharding, source.shape)
    # jax makes an array for each shard, each time that it is asked for one: all at once is cheaper.
    # (None once the array is donated; what follows says so then.)
    shards = [s for s in getattr(source, "_arrays", None) or () if s.device.id in wanted]
    if len(shards) == len(wanted):
        return [(wanted[s.device.id], _to_numpy(s)) for s in shards]
    return [(index, _to_numpy(shard_on(source, device))) for device, index in wanted.items()]


def _assembled(
    parts: list[tuple[tuple[slice, ...], np.ndarray]], shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    out = np.empty(shape, dtype)
    for index, part in parts:
        out[index] = part
    return out


@functools.lru_cache(maxsize=1024)
def _one_device_each(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> dict[int, tuple[slice, ...]]:
    """For each region one addressable device that holds it, and its index in the array."""
    found: dict[Box, tuple[int, tuple[slice, ...]]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        found.setdefault(box_of_index(index, shape), (device.id, index))
    return dict(found.values())


def _to_numpy(array: jax.Array) -> np.ndarray:
    device: Any = array.device  # of an array on one device
    if device.platform != "cpu":
        # An array keeps the host copy that was made of it; a second name for the same buffer
        # takes the copy along when it goes.
        array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
    return np.asarray(array)
