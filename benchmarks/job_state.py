"""The state of a job of several processes: replicated over them, or cut into one part for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import crc32c
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

LEAVES = 30
_COLUMNS = 2048
_EXPONENT, _TOP_OF_IT = np.uint32(0x7F800000), np.uint32(0x40000000)

REPLICATED, SHARDED = "replicated", "sharded"


@dataclass(frozen=True)
class JobState:
    """A flat tree of global arrays.

    Attributes:
        name: `REPLICATED`: each process holds all, cut over its own devices; `SHARDED`: nobody
            holds the same.
        arrays: until `drop` is called.
        target: shapes, dtypes and shardings, for a restore.
        checksums: of each shard of this process, by leaf.
        nbytes: of all leaves, counted once.
    """

    name: str
    arrays: dict[str, jax.Array]
    target: dict[str, jax.ShapeDtypeStruct]
    checksums: dict[str, list[int]]
    nbytes: int

    def drop(self) -> None:
        """Frees the arrays; the rest goes on without them."""
        self.arrays.clear()

    def verify(self, restored: dict[str, jax.Array]) -> None:
        """Fails unless every leaf is there, in its place and the same bit for bit."""
        if restored.keys() != self.target.keys():
            raise AssertionError(f"{self.name}: other leaves than were saved")
        for name, wanted in self.target.items():
            found = restored[name]
            if found.sharding != wanted.sharding or found.dtype != wanted.dtype:
                raise AssertionError(f"{self.name}: {name} is sharded otherwise")
            if _checksums(found) != self.checksums[name]:
                raise AssertionError(f"{self.name}: {name} differs from what was saved")


def make(name: str, nbytes: float) -> JobState:
    """About so many random bytes; every process makes the same."""
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    mesh = Mesh(np.array(devices).reshape(jax.process_count(), -1), ("replica", "shard"))
    rows = "shard" if name == REPLICATED else ("replica", "shard")
    sharding = NamedSharding(mesh, PartitionSpec(rows, None))
    rows_a_device = max(1, int(nbytes / LEAVES / _COLUMNS / 4 / len(devices)))
    shape = (rows_a_device * len(devices), _COLUMNS)
    arrays: dict[str, jax.Array] = {}
    for number in range(LEAVES):
        host = _random(number, shape)
        arrays[f"leaf_{number:05d}"] = jax.make_array_from_callback(
            shape, sharding, lambda index, host=host: host[index].copy()
        )
    target = {
        leaf: jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding) for leaf in sorted(arrays)
    }
    checksums = {leaf: _checksums(array) for leaf, array in arrays.items()}
    return JobState(name, arrays, target, checksums, sum(a.nbytes for a in arrays.values()))


def _random(seed: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Random bits, which no compression makes smaller.

    Without NaN, infinities, zeros and denormals: a broadcast that adds up floats changes some.
    """
    bits = np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32)
    exponent = bits & _EXPONENT
    bits[(exponent == 0) | (exponent == _EXPONENT)] ^= _TOP_OF_IT
    return bits.view(np.float32)


def _checksums(array: Any) -> list[int]:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return [crc32c.crc32c(np.ascontiguousarray(shard.data).data) for shard in shards]
