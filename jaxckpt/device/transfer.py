"""Chunks on their way from accelerators to host memory: begun in order, ahead of the copies.

A chunk goes to pinned host memory (jax's memory kind ``pinned_host``), which the runtime keeps and
hands out again, and is looked at there without another copy where numpy knows the dtype. Where a
device has no such memory, jax's own host copies are begun in its place.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxckpt.device.cutting import cut, needs_cut
from jaxckpt.device.host_view import host_chunk, shard_on
from jaxckpt.layout.save_plan import PlannedChunk

_PINNED = "pinned_host"
_LOOK_SECS = 0.1
MOST_BYTES = 256 << 20
"""On their way at once: enough for the bus, little beside a state."""


def is_far(device: Any) -> bool:
    """Whether host memory is reached over a bus."""
    return device.platform != "cpu"


class Transfers:
    """Begins transfers within a byte limit; more wait until earlier ones are taken.

    Args:
        limit_bytes: a single group of chunks that is larger goes alone.
        stopped: says that the save failed; nobody waits any more.
    """

    def __init__(self, limit_bytes: int, stopped: Callable[[], bool]) -> None:
        self._limit, self._stopped = limit_bytes, stopped
        self._under_way = 0
        self._changed = threading.Condition()

    def begin(self, chunks: Sequence[tuple[Any, PlannedChunk]]) -> list[Callable[[], np.ndarray]]:
        """Begins the transfers of some chunks of arrays, and gives for each a function that blocks
        until it is there and returns its elements.

        Blocks while too much is under way. `done` must follow.
        """
        nbytes = sum(chunk.nbytes for _, chunk in chunks)
        with self._changed:
            while self._under_way and self._under_way + nbytes > self._limit:
                if self._stopped():
                    break
                self._changed.wait(_LOOK_SECS)
            self._under_way += nbytes
        return [_begin(source, chunk) for source, chunk in chunks]

    def done(self, chunks: Sequence[tuple[Any, PlannedChunk]]) -> None:
        """Nobody looks at these any more."""
        with self._changed:
            self._under_way -= sum(chunk.nbytes for _, chunk in chunks)
            self._changed.notify_all()


def _begin(source: Any, chunk: PlannedChunk) -> Callable[[], np.ndarray]:
    if chunk.device < 0:  # of the host, or put together from several devices
        return functools.partial(host_chunk, source, chunk)
    shard = shard_on(source, chunk.device)
    part = chunk.box.slices_within(chunk.region)
    if chunk.box != chunk.region and needs_cut(shard):
        start = tuple(a - b for a, b in zip(chunk.box.start, chunk.region.start, strict=True))
        shard, part = cut(shard, start, chunk.box.shape), ()
    arriving = _to_host(shard)
    return lambda: _elements(arriving)[part]


def _to_host(shard: jax.Array) -> jax.Array:
    pinned = _pinned(next(iter(shard.devices())))
    if pinned is not None:
        return jax.device_put(shard, pinned)
    # An array keeps the host copy that was made of it; a second name for the same buffer takes the
    # copy along when it goes.
    again = jax.make_array_from_single_device_arrays(shard.shape, shard.sharding, [shard])
    again.copy_to_host_async()
    return again


@functools.lru_cache(maxsize=1024)
def _pinned(device: Any) -> jax.sharding.Sharding | None:
    if all(memory.kind != _PINNED for memory in device.addressable_memories()):
        return None
    return jax.sharding.SingleDeviceSharding(device, memory_kind=_PINNED)


def _elements(array: jax.Array) -> np.ndarray:
    """Of an array in host memory, without a copy where that can be had."""
    array.block_until_ready()
    if array.dtype.kind in "fiuc" and array.ndim:
        try:
            return np.from_dlpack(array)  # pyright: ignore[reportArgumentType]
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # a runtime that does not show this memory
    return np.asarray(array)
