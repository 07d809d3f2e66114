"""What the processes of a job do; started by `jobs.py`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import Any

INDEX, COUNT, PORT, HEARTBEAT = map(int, os.environ["JOB"].split())

import jax
import ml_dtypes
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxckpt


def mesh_of(shape: list[int], names: str, order: int = 0) -> Mesh:
    """A mesh over the first devices, in one of several orders."""
    devices = np.array(jax.devices()[: int(np.prod(shape))])
    if order:
        devices = np.random.default_rng(order).permutation(devices)
    return Mesh(devices.reshape(shape), tuple(names), axis_types=(AxisType.Auto,) * len(shape))


def values(seed: int) -> dict[str, np.ndarray]:
    """Bits of every kind, the same in every process."""
    rng = np.random.default_rng(seed)

    def bits(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)

    return {
        "wide": bits((64, 512), np.float32),
        "tall": bits((1024, 96), ml_dtypes.bfloat16),
        "cube": bits((8, 16, 24), np.int16),
        "flat": bits((1 << 18,), np.float32),
        "f8": bits((64, 64), ml_dtypes.float8_e5m2),
        "flags": rng.integers(0, 2, (16, 16)).astype(bool),
        "tiny": bits((8,), np.float64),
        "scalar": bits((), np.int32),
        "empty": np.zeros((0, 8), np.float32),
    }


def state_of(seed: int, mesh: Mesh, specs: list[Any]) -> dict[str, Any]:
    """The values as global arrays; leaf i has spec i of the list, cyclically."""
    out: dict[str, Any] = {}
    for i, (name, value) in enumerate(values(seed).items()):
        out[name] = place(value, fitting(value, mesh, specs[i % len(specs)]))
    out["key"] = jax.jit(lambda: jax.random.key(seed), out_shardings=NamedSharding(mesh, P()))()
    out["step"] = seed
    out["host"] = np.arange(100, dtype=np.int64) * seed
    out["name"] = f"run {seed}"
    return out


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
        value.shape, sharding, lambda i: np.array(value[i], order="C")
    )


def assert_state(seed: int, found: Any, where: str = "") -> None:
    """Bits of every addressable shard."""
    for name, value in values(seed).items():
        leaf = found[name]
        shards = leaf.addressable_shards if isinstance(leaf, jax.Array) else None
        for index, data in (
            [(s.index, np.asarray(s.data)) for s in shards] if shards is not None else [(..., leaf)]
        ):
            want = np.array(value[index], order="C")
            assert data.dtype == want.dtype, (where, name)
            assert data.tobytes() == want.tobytes(), (where, name)
    key = np.asarray(jax.random.key_data(found["key"]).addressable_shards[0].data)
    np.testing.assert_array_equal(key, jax.random.key_data(jax.random.key(seed)))
    assert found["step"] == seed
    assert found["name"] == f"run {seed}"
    np.testing.assert_array_equal(found["host"], np.arange(100) * seed)


def shape_of(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: (
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            if isinstance(x, jax.Array)
            else x
        ),
        tree,
    )


@contextlib.contextmanager
def raised(into: dict[str, Any]) -> Any:
    """Notes an error's class and text."""
    try:
        yield
    except Exception as error:
        into["error"] = type(error).__name__
        into["text"] = str(error)
        into["trace"] = traceback.format_exc()[-1500:]


# -- scenarios -------------------------------------------------------------------------------------


def save_and_restore(directory: str, grid: list[Any]) -> Any:
    """Each case: save on one mesh, restore on another."""
    from jaxckpt.io.local import LocalStore

    del LocalStore
    for number, (shape, names, order, specs, shape2, names2, order2, specs2, complete) in enumerate(
        grid
    ):
        path = f"{directory}/{number}"
        saved = state_of(number + 1, mesh_of(shape, names, order), specs)
        jaxckpt.save(path, saved)
        target = shape_of(state_of(0, mesh_of(shape2, names2, order2), specs2))
        options = jaxckpt.Options(complete=complete) if complete else None
        assert_state(number + 1, jaxckpt.restore(path, target, options=options), str(grid[number]))
    return len(grid)


def main() -> None:
    name, args = sys.argv[1], json.loads(sys.argv[2])
    if COUNT > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{PORT}",
            num_processes=COUNT,
            process_id=INDEX,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=20,
        )
    code = 0
    try:
        print("RESULT", json.dumps(globals()[name](**args)), flush=True)
        if COUNT > 1:
            client = jax._src.distributed.global_state.client
            client.wait_at_barrier("the end", 60_000)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a normal exit waits for processes that may be dead


if __name__ == "__main__":
    main()
