"""The states that are saved: one of large leaves, two of many small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from numpy.typing import NDArray

DEVICES, MESH_SHAPE = 8, (4, 2)
LARGE_LEAVES = 30
_LARGE_COLUMNS = 2048
_SMALL_SHAPE = (16, 16)


@dataclass(frozen=True)
class State:
    """A flat tree of sharded arrays and what is in it.

    Attributes:
        name: in tables and results.
        host: the data, whole, in numpy.
        arrays: the same on the devices.
        target: shapes, dtypes and shardings, for a restore.
        nbytes: of all leaves.
    """

    name: str
    host: dict[str, NDArray[np.float32]]
    arrays: dict[str, jax.Array]
    target: dict[str, jax.ShapeDtypeStruct]
    nbytes: int

    def verify(self, restored: dict[str, Any]) -> None:
        """Fails unless every leaf is there and the same, bit for bit."""
        if restored.keys() != self.host.keys():
            raise AssertionError(f"{self.name}: other leaves than were saved")
        for name, expected in self.host.items():
            found = np.asarray(restored[name])
            same = found.shape == expected.shape and found.dtype == expected.dtype
            if not same or not np.array_equal(found.view(np.uint32), expected.view(np.uint32)):
                raise AssertionError(f"{self.name}: {name} differs from what was saved")

    def verify_sharded(self, restored: dict[str, jax.Array]) -> None:
        """`verify`, and that every leaf lies on the devices as the target says."""
        self.verify(restored)
        for name, wanted in self.target.items():
            if restored[name].sharding != wanted.sharding:
                raise AssertionError(f"{self.name}: {name} is sharded otherwise")


def start_devices() -> None:
    """Makes the virtual devices; call it before anything else asks jax for devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_platforms", "cpu")


def large(nbytes: float) -> State:
    """About so many random bytes over a few large leaves."""
    row_bytes = _LARGE_COLUMNS * np.dtype(np.float32).itemsize
    rows_a_device = max(1, int(nbytes / LARGE_LEAVES / row_bytes / MESH_SHAPE[0]))
    shape = (rows_a_device * MESH_SHAPE[0], _LARGE_COLUMNS)
    return _make("large", LARGE_LEAVES, shape)


def small(leaves: int) -> State:
    """So many leaves of 1 KiB."""
    return _make(f"small{leaves}", leaves, _SMALL_SHAPE)


def many(leaves: int, shape: tuple[int, int], *, whole: bool = False) -> State:
    """So many leaves of a shape; ``whole`` puts each on one device, unsharded."""
    return _make(f"many{leaves}", leaves, shape, whole=whole)


def _make(name: str, leaves: int, shape: tuple[int, int], *, whole: bool = False) -> State:
    random = np.random.default_rng(leaves)
    host = {
        f"leaf_{number:05d}": random.standard_normal(shape, dtype=np.float32)
        for number in range(leaves)
    }
    if whole:
        sharding = SingleDeviceSharding(jax.devices()[0])
    else:
        mesh = Mesh(np.array(jax.devices()[:DEVICES]).reshape(MESH_SHAPE), ("x", "y"))
        sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    arrays = jax.block_until_ready(jax.device_put(host, sharding))
    struct = jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
    nbytes = sum(leaf.nbytes for leaf in host.values())
    return State(name, host, arrays, dict.fromkeys(host, struct), nbytes)
