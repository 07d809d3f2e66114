"""The AllGather that completes a restore: raw words, one compiled function for each group.

Bytes travel as uint32, never as numbers: on some backends a collective changes NaN patterns of
small floats, and one of 2-bit integers corrupts memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

Collective = Literal["allgather", "broadcast"]
_AXES = ("process", "local")


@functools.lru_cache(maxsize=64)
def stripe_gather(
    group: tuple[int, ...], stripe_bytes: int, collective: Collective
) -> StripeGather:
    """A `StripeGather`, compiled; the same one for the same arguments."""
    made = StripeGather(group, stripe_bytes, collective)
    made.compile()
    return made


class StripeGather:
    """Hands the stripes of a group of processes to each of them.

    The stripe of a process is spread over its devices, so that on accelerators every link takes a
    share. Every process of the group must make one with the same arguments, `compile` it, and call
    it equally often.

    Args:
        group: process indices, ascending; this process is one of them.
        stripe_bytes: of one process; a multiple of 32 KiB.
        collective: ``broadcast`` for one member that gives the stripes of all: the words are
            summed with zeros, which is exact for words.
    """

    def __init__(
        self, group: Sequence[int], stripe_bytes: int, collective: Collective = "allgather"
    ) -> None:
        by_process = _devices()
        self._devices = [by_process[p] for p in group]
        width = 1
        if all(d.platform != "cpu" for row in self._devices for d in row):
            width = max(w for w in (1, 2, 4, 8) if w <= min(map(len, self._devices)))
        self._devices = [row[:width] for row in self._devices]
        self._members, self._width, self._collective = len(group), width, collective
        self._words = stripe_bytes // 4
        self._own = self._devices[list(group).index(jax.process_index())]
        mesh = Mesh(np.array(self._devices), _AXES)
        self._sharding = NamedSharding(mesh, PartitionSpec(_AXES))
        given = self._words * (1 if collective == "allgather" else self._members)
        self._shape = (self._members * given,)

        def complete(words: jax.Array) -> jax.Array:
            if collective == "allgather":
                return lax.all_gather(words, "process", tiled=True)
            return lax.psum(words, "process")

        self._function = jax.jit(
            jax.shard_map(
                complete,
                mesh=mesh,
                in_specs=PartitionSpec(_AXES),
                out_specs=PartitionSpec("local"),
                check_vma=False,
            )
        )
        self._compiled: jax.stages.Compiled | None = None

    def compile(self) -> None:
        """Compiles; talks to no other process."""
        words = jax.ShapeDtypeStruct(self._shape, np.uint32, sharding=self._sharding)
        self._compiled = self._function.lower(words).compile()

    def __call__(self, given: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Blocks until every process of the group has called it.

        Args:
            given: uint8, this process's stripe; for ``broadcast`` the stripes of all members, or
                zeros. It may be used again after the call.

        Returns:
            uint8 of shape (members, stripe_bytes): every member's stripe.
        """
        assert self._compiled is not None
        # Each device takes its part of every stripe that is given.
        parts = given.view(np.uint32).reshape(-1, self._width, self._words // self._width)
        placed = [
            jax.device_put(np.ascontiguousarray(parts[:, i]).reshape(-1), device)
            for i, device in enumerate(self._own)
        ]
        words = jax.make_array_from_single_device_arrays(self._shape, self._sharding, placed)
        result = self._compiled(words)
        result.block_until_ready()
        shards = sorted(result.addressable_shards, key=lambda s: s.index[0].start or 0)
        found = [np.asarray(s.data).reshape(self._members, -1) for s in shards]
        whole = found[0] if self._width == 1 else np.stack(found, 1).reshape(self._members, -1)
        return whole.view(np.uint8)


@functools.cache
def _devices() -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for device in jax.devices():
        found.setdefault(device.process_index, []).append(device)
    return found
