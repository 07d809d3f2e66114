"""States whose every bit all processes know, on any mesh. Does not import jaxckpt."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

NOT_ORBAX = ("empty", "local", "keys", "values")


def mesh_of(shape: list[int], names: str, order: int = 0) -> Mesh:
    """A mesh over the first devices, or over all, in one of several orders, and of them as many."""
    devices = np.array(jax.devices())
    if order:
        devices = np.random.default_rng(order).permutation(devices)
    devices = devices[: int(np.prod(shape))].reshape(shape)
    return Mesh(devices, tuple(names), axis_types=(AxisType.Auto,) * len(shape))


def values(seed: int) -> dict[str, np.ndarray]:
    """Bits of every kind, NaN payloads and -0.0 among them, the same in every process."""
    rng = np.random.default_rng(seed)

    def bits(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)

    def narrow(shape: tuple[int, ...], dtype: Any, low: int, high: int) -> np.ndarray:
        return rng.integers(low, high, shape, np.int8).astype(dtype)

    zeros = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 5e-324, -5e-324])
    return {
        "wide": bits((64, 512), np.float32),
        "tall": bits((1024, 96), ml_dtypes.bfloat16),
        "cube": bits((8, 16, 24), np.int16),
        "flat": bits((1 << 18,), np.float32),
        "prime": bits((9973,), np.float32),
        "prime2": bits((251, 127), ml_dtypes.bfloat16),
        "f8": bits((64, 64), ml_dtypes.float8_e5m2),
        "f8_e4": bits((256, 512), ml_dtypes.float8_e4m3fn),
        "int4": narrow((64, 96), ml_dtypes.int4, -8, 8),
        "int2": narrow((64, 64), ml_dtypes.int2, -2, 2),
        "complex": bits((32, 512), np.complex64),
        "double": bits((16, 1024), np.float64),
        "flags": rng.integers(0, 2, (256, 512)).astype(bool),
        "zeros": zeros,
        "tiny": bits((8,), np.float64),
        "scalar": bits((), np.int32),
        "empty": np.zeros((0, 8), np.float32),
    }


def keys(seed: int, mesh: Mesh) -> dict[str, jax.Array]:
    return {name: make(seed) for name, make in _makers(mesh).items()}


@functools.cache
def _makers(mesh: Mesh) -> dict[str, Callable[[int], jax.Array]]:
    one, many = NamedSharding(mesh, P()), NamedSharding(mesh, _key_spec(mesh))
    return {
        "key": jax.jit(lambda s: jax.random.key(s), out_shardings=one),
        "rbg": jax.jit(lambda s: jax.random.key(s, impl="rbg"), out_shardings=one),
        "split": jax.jit(lambda s: jax.random.split(jax.random.key(s), 64), out_shardings=many),
    }


def _key_spec(mesh: Mesh) -> P:
    axis = mesh.axis_names[0]
    return P() if 64 % mesh.shape[axis] else P(axis)


def host_values(seed: int) -> dict[str, Any]:
    return {
        "step": seed,
        "rate": -0.0,
        "done": False,
        "nothing": None,
        "list": [],
        "name": f"run {seed} é",
        "host": np.arange(100, dtype=np.int64) * seed,
        "large": np.arange(50_000, dtype=np.float64) / (seed or 1),
        "number": np.float32(seed),
    }


def state_of(seed: int, mesh: Mesh, specs: list[Any]) -> dict[str, Any]:
    """The values as global arrays; leaf i has spec i of the list, cyclically."""
    out: dict[str, Any] = {}
    for i, (name, value) in enumerate(values(seed).items()):
        out[name] = place(value, fitting(value, mesh, specs[i % len(specs)]))
    local = np.arange(30_000, dtype=np.int32) + seed
    out["local"] = jax.device_put(local, jax.local_devices()[-1])
    return {**out, "keys": keys(seed, mesh), "values": host_values(seed)}


def target_of(mesh: Mesh, specs: list[Any]) -> dict[str, Any]:
    """What to restore such a state to; holds none of the values."""
    out: dict[str, Any] = {}
    for i, (name, value) in enumerate(values(0).items()):
        sharding = fitting(value, mesh, specs[i % len(specs)])
        out[name] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    own = SingleDeviceSharding(jax.local_devices()[0])
    out["local"] = jax.ShapeDtypeStruct((30_000,), np.int32, sharding=own)
    found = {name: jax.eval_shape(make, 0) for name, make in _makers(mesh).items()}
    specs = {"split": _key_spec(mesh)}
    out["keys"] = {
        name: jax.ShapeDtypeStruct(
            key.shape, key.dtype, sharding=NamedSharding(mesh, specs.get(name, P()))
        )
        for name, key in found.items()
    }
    return {**out, "values": host_values(0)}


def fitting(value: np.ndarray, mesh: Mesh, spec: list[Any]) -> NamedSharding:
    """The spec, without axes that the shape does not divide."""
    entries = [tuple(e) if isinstance(e, list) else e for e in spec[: value.ndim]]
    for i, entry in enumerate(entries):
        names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
        if value.shape[i] % int(np.prod([mesh.shape[n] for n in names], dtype=int)):
            entries[i] = None
    return NamedSharding(mesh, P(*entries))


def place(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(
        value.shape, sharding, lambda i: np.array(value[i], order="C"), dtype=value.dtype
    )


def assert_bits(found: Any, value: np.ndarray, where: Any) -> None:
    """Bits of every addressable shard, or of a host array."""
    shards = [(..., found)]
    if isinstance(found, jax.Array):
        shards = [(s.index, np.asarray(s.data)) for s in found.addressable_shards]
    assert found.shape == value.shape, where
    for index, data in shards:
        want = np.array(value[index], order="C")
        assert data.dtype == want.dtype, where
        assert data.tobytes() == want.tobytes(), where


def assert_state(seed: int, found: Any, where: Any = "") -> None:
    for name, value in values(seed).items():
        assert_bits(found[name], value, (where, name))
    assert_bits(found["local"], np.arange(30_000, dtype=np.int32) + seed, (where, "local"))
    key = jax.random.key(seed)
    for name, want in (
        ("key", key),
        ("rbg", jax.random.key(seed, impl="rbg")),
        ("split", jax.random.split(key, 64)),
    ):
        got = found["keys"][name]
        assert jax.random.key_impl(got) == jax.random.key_impl(want), (where, name)
        data = np.asarray(jax.random.key_data(want))
        assert_bits(jax.random.key_data(got), data, (where, name))
    for name, want in host_values(seed).items():
        got = found["values"][name]
        if isinstance(want, np.ndarray):
            assert_bits(got, want, (where, name))
        else:
            assert type(got) is type(want), (where, name)
            assert repr(got) == repr(want), (where, name)


def orbax_state(seed: int, mesh: Mesh, specs: list[Any]) -> dict[str, Any]:
    """What orbax can save from a job of several processes."""
    state = state_of(seed, mesh, specs)
    for name in NOT_ORBAX:
        del state[name]
    return {**state, "step": seed, "host": np.arange(100) * seed}


def orbax_target(mesh: Mesh, specs: list[Any]) -> dict[str, Any]:
    target = target_of(mesh, specs)
    for name in NOT_ORBAX:
        del target[name]
    return {**target, "step": 0, "host": np.arange(100)}


def assert_arrays(seed: int, found: Any, where: Any = "") -> None:
    for name, value in values(seed).items():
        if name not in NOT_ORBAX:
            assert_bits(found[name], value, (where, name))
    assert found["step"] == seed, where
    assert_bits(found["host"], np.arange(100) * seed, (where, "host"))


@contextlib.contextmanager
def raised(into: dict[str, Any]) -> Iterator[None]:
    """Notes an error's class and text."""
    try:
        yield
    except Exception as error:
        into["error"] = type(error).__name__
        into["text"] = str(error)
        into["trace"] = traceback.format_exc()[-3000:]
