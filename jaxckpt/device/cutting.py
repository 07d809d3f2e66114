"""Parts of a shard, cut out on the device by functions that are compiled once.

One function for each pair of shapes, with the start as an argument: a save that cuts a thousand
leaves of like shape compiles once, and the next save not at all.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

_INDEX_LIMIT = 1 << 31  # starts are int32, whatever jax_enable_x64 says


def needs_cut(shard: jax.Array) -> bool:
    """Whether a host view of the whole shard would cost a transfer of all of it."""
    far = next(iter(shard.devices())).platform != "cpu"
    return far and max(shard.shape, default=0) < _INDEX_LIMIT


def prepare(shard: jax.Array, shape: tuple[int, ...]) -> None:
    """Compiles what `cut` needs for parts of this shape, before threads ask for it."""
    _cutter(shard.shape, shard.dtype, shard.sharding, shape)


def cut(shard: jax.Array, start: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
    """A rectangular part of an array on one device, on that device; exact to the bit.

    Args:
        shard: shape (n0, n1, ...), any dtype, on one device.
        start, shape: of the part, one number per axis; it lies inside.
    """
    cutter = _cutter(shard.shape, shard.dtype, shard.sharding, shape)
    return cutter(shard, np.asarray(start, np.int32))


@functools.lru_cache(maxsize=4096)
def _cutter(
    whole: tuple[int, ...], dtype: Any, sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> jax.stages.Compiled:
    def dynamic_slice(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice(x, [start[i] for i in range(len(shape))], shape)

    return (
        jax.jit(dynamic_slice)
        .lower(
            jax.ShapeDtypeStruct(whole, dtype, sharding=sharding),
            jax.ShapeDtypeStruct((len(shape),), np.int32),
        )
        .compile()
    )
