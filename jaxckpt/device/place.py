"""From regions in host memory to the arrays of the result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxckpt._types import Box, LeafSpec, Processes
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.leaves import sharding_text, short_text
from jaxckpt.layout.match import Wanted
from jaxckpt.layout.needing import Needing
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


def needing_processes(want: Wanted, processes: Processes) -> Needing:
    """Which processes must hold which regions for a result; the same on every process.

    What is not spread over the devices of several processes, each process has for itself, so all
    need all of it.
    """
    assert want.spec is not None
    shape = want.spec.stored_shape
    everybody = tuple(range(processes.count))
    sharding = data_sharding(want) if want.kind in ("jax", "prng") else None
    if sharding is None or processes.count == 1:
        return Needing(shape, everybody)
    holders = _holders(sharding, processes.of)
    if holders == (processes.index,):
        return Needing(shape, everybody)
    if _take_whole(want.spec):
        return Needing(shape, holders)
    return Needing(shape, holders, partition_of(sharding, shape, processes.of))


@functools.lru_cache(maxsize=1024)
def _holders(sharding: jax.sharding.Sharding, process_of: Callable[[Any], int]) -> tuple[int, ...]:
    return tuple(sorted({process_of(d) for d in sharding.device_set}))


def wanted_sharding_text(want: Wanted, processes: Processes = _OWN_PROCESSES) -> str | None:
    """Text that tells shardings over several processes apart; None for one process's own."""
    sharding = want.sharding
    if sharding is None:
        return None
    holders = _holders(sharding, processes.of)
    if len(holders) > 1:
        return short_text(sharding_text(sharding) or repr(sharding))
    if sharding.is_fully_addressable:
        return None
    return f"devices of process {min(holders)} alone"


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
    if sharding is None:
        return [whole_box(shape)]
    if _take_whole(want.spec):
        return [whole_box(shape)] if sharding.addressable_devices else []
    return sorted(
        {box_of_index(i, shape) for i in _own_indices(sharding, shape)}, key=lambda b: b.start
    )


def _own_indices(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> list[tuple[slice, ...]]:
    found = sharding.addressable_devices_indices_map(shape).values()
    return [index for index in found if index is not None]


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

        dtype = next((m.dtype for m in memory.values()), DTYPES[want.dtype or spec.dtype])
        if sharding.addressable_devices:
            array = jax.make_array_from_callback(shape, sharding, region, dtype=dtype)
        else:  # jax would ask for a region of which this process has nothing
            array = jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=dtype)
    if want.kind == "prng":
        keys = jax.random.wrap_key_data(array, impl=spec.impl)
        # Jax spells the sharding of keys out for every axis, whatever was asked for; and in a job
        # of several processes it does not put keys anew.
        wanted = want.sharding
        fits = wanted is None or keys.sharding.is_equivalent_to(wanted, keys.ndim)
        return keys if fits else jax.device_put(keys, wanted)
    return array
