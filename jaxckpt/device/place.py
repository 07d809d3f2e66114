"""From regions in host memory to the arrays of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxckpt._types import Box, LeafSpec, Processes
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.match import Wanted
from jaxckpt.layout.partition import whole_box
from jaxckpt.layout.shardings import box_of_index, partition_of

_WHOLE_BYTES = 64 << 10
_OWN_PROCESSES = Processes()


def data_sharding(want: Wanted) -> jax.sharding.Sharding | None:
    """The sharding of the stored array: for PRNG keys that of their words."""
    sharding = want.sharding
    if want.kind != "prng" or sharding is None or want.spec is None:
        return sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        ndim = len(want.spec.shape)
        spec = (*sharding.spec, *([None] * (ndim - len(sharding.spec))), None)
        return jax.sharding.NamedSharding(
            sharding.mesh, jax.sharding.PartitionSpec(*spec), memory_kind=sharding.memory_kind
        )
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    return None


def needed_boxes(want: Wanted) -> list[Box]:
    """The distinct regions that this process must hold for a result.

    Raises:
        ValueError: the target's sharding does not fit the shape.
    """
    assert want.spec is not None
    shape = want.spec.stored_shape
    sharding = data_sharding(want) if want.kind in ("jax", "prng") else None
    if sharding is not None:
        sharding.shard_shape(shape)  # refuses a shape that it does not divide
    if sharding is None or _take_whole(want.spec):
        return [whole_box(shape)]
    own = {d.id for d in sharding.addressable_devices}
    part = partition_of(sharding, shape, _OWN_PROCESSES.of)
    return [
        box
        for box, group in zip(part.boxes, part.replicas, strict=True)
        if any(r.device in own for r in group)
    ]


def _take_whole(spec: LeafSpec) -> bool:
    """A small leaf in one chunk is read whole whatever is needed of it, so jax may cut it."""
    if spec.chunk_shape != spec.stored_shape:
        return False
    return math.prod(spec.stored_shape) * DTYPES[spec.dtype].itemsize <= _WHOLE_BYTES


def build_result(want: Wanted, memory: Mapping[Box, np.ndarray]) -> Any:
    """The leaf of the result.

    Args:
        memory: an array for each of `needed_boxes`. On the CPU backend the result uses the same
            memory, which must never be written again.
    """
    spec = want.spec
    assert spec is not None
    shape = spec.stored_shape
    if want.dtype and want.dtype != spec.dtype:
        memory = {box: array.astype(DTYPES[want.dtype]) for box, array in memory.items()}
    if want.kind == "numpy":
        return memory[whole_box(shape)]
    if want.kind == "npscalar":
        scalar = memory[whole_box(shape)][()]
        return want.python(scalar) if want.python else scalar
    sharding = data_sharding(want)
    if sharding is None:
        array = jax.device_put(memory[whole_box(shape)])
    else:
        whole = memory.get(whole_box(shape))

        def region(index: Any) -> np.ndarray:
            return memory[box_of_index(index, shape)] if whole is None else whole[index]

        array = jax.make_array_from_callback(shape, sharding, region)
    if want.kind == "prng":
        keys = jax.random.wrap_key_data(array, impl=spec.impl)
        fits = want.sharding is None or keys.sharding == want.sharding
        return keys if fits else jax.device_put(keys, want.sharding)
    return array
