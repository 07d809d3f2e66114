"""From an array on devices to its elements in host memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxckpt.layout.partition import box_of_index
from jaxckpt.layout.save_plan import ASSEMBLE


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
        out = np.empty(source.shape, source.dtype)
        seen: set[Any] = set()
        for shard in source.addressable_shards:
            box = box_of_index(shard.index, source.shape)
            if box not in seen:
                seen.add(box)
                out[shard.index] = _to_numpy(shard.data)
        return out
    for shard in source.addressable_shards:
        if shard.device.id == device:
            return _to_numpy(shard.data)
    raise LookupError(f"device {device} holds no shard")


def _to_numpy(array: jax.Array) -> np.ndarray:
    if next(iter(array.devices())).platform != "cpu":
        # An array keeps the host copy that was made of it; a second name for the same buffer
        # takes the copy along when it goes.
        array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
    return np.asarray(array)
