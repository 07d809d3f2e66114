"""The side without jaxckpt: restores or writes with stock orbax and prints what it found as JSON.

Run as a script in a process of its own, from which jaxckpt can not be imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_ENABLE_X64"] = "1"


class _Refuse:
    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "jaxckpt":
            raise ImportError("jaxckpt is not to be had here")


if __name__ == "__main__":
    sys.meta_path.insert(0, _Refuse())

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec


def sharding(*spec: Any) -> NamedSharding:
    return NamedSharding(jax.make_mesh((4, 2), ("x", "y")), PartitionSpec(*spec))


def arrays() -> dict[str, Any]:
    """Arrays that both sides know."""
    rng = np.random.default_rng(3)
    big = rng.random((256, 128)).astype(np.float32)
    return {
        "sharded": jax.device_put(big, sharding("x", "y")),
        "replicated": jax.device_put(big[:7], sharding()),
        "bf16": jax.device_put(big.astype(jnp.bfloat16), sharding(None, "x")),
        "ints": jnp.arange(-5, 5, dtype=jnp.int8),
        "zero_d": jnp.float64(2.5),
        "numpy": rng.random((3, 5)),
        "prime": rng.random(9973),
        "nested": {"0": [jnp.ones(3), {"deep.er": np.arange(4)}]},
    }


def full(how: str) -> dict[str, Any]:
    """The whole state; orbax's standard handler takes no strings."""
    found = {**arrays(), "int": 3, "float": 0.1, "none": None, "dict": {}, "list": []}
    if how.startswith(("pytree", "zarr")):
        found["text"] = "héllo"
    return found


def bits(x: Any) -> Any:
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return ["key", str(jax.random.key_impl(x)), *bits(jax.random.key_data(x))]
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        array = np.asarray(x)
        return [array.dtype.name, list(array.shape), array.tobytes().hex()]
    return x


def flat(tree: Any) -> dict[str, Any]:
    found = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is None or x in ({}, [], ()) if not hasattr(x, "shape") else False
    )[0]
    names = {}
    for path, leaf in found:
        keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", None))) for k in path]
        names["/".join(map(str, keys))] = bits(leaf)
    return names


def restore(path: Path, how: str) -> Any:
    """With each of orbax's restorers, with a target and without."""
    if how == "odd":
        return ocp.PyTreeCheckpointer().restore(path)
    target = full(how)
    if how == "standard":
        return ocp.StandardCheckpointer().restore(path)
    if how == "standard-target":
        return ocp.StandardCheckpointer().restore(path, target)
    if how == "standard-other-mesh":
        mesh = jax.make_mesh((2,), ("z",), devices=jax.devices()[:2])
        other = NamedSharding(mesh, PartitionSpec("z"))
        target["sharded"] = jax.ShapeDtypeStruct((256, 128), jnp.float32, sharding=other)
        return ocp.StandardCheckpointer().restore(path, target)
    if how == "pytree":
        return ocp.PyTreeCheckpointer().restore(path)
    if how == "pytree-target":
        args = ocp.checkpoint_utils.construct_restore_args(target)
        return ocp.PyTreeCheckpointer().restore(path, item=target, restore_args=args)
    manager = ocp.CheckpointManager(path)
    step = manager.latest_step()
    if how == "manager":
        return manager.restore(step)
    if how == "manager-target":
        return manager.restore(step, args=ocp.args.StandardRestore(target))
    if how == "manager-composite":
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(target), config=ocp.args.JsonRestore()
        )
        restored = manager.restore(step, args=items)
        assert restored.config == {"lr": 0.1}
        return restored.state
    raise ValueError(how)


def write(path: Path, how: str) -> None:
    state = full(how)
    if how == "manager":
        with ocp.CheckpointManager(path) as manager:
            manager.save(5, args=ocp.args.StandardSave(state))
        return
    if how == "manager-composite":
        with ocp.CheckpointManager(path) as manager:
            items = {
                "state": ocp.args.StandardSave(state),
                "config": ocp.args.JsonSave({"lr": 0.1}),
            }
            manager.save(5, args=ocp.args.Composite(**items))
        return
    if how == "v1":
        ocp.v1.save(path, state)
        return
    options: dict[str, Any] = {
        "zarr2": {},
        "zarr3": {"use_zarr3": True},
        "zarr2-files": {"use_ocdbt": False},
        "zarr3-files": {"use_ocdbt": False, "use_zarr3": True},
        "zarr2-plain": {"use_compression": False},
        "zarr3-plain": {"use_zarr3": True, "use_compression": False},
    }[how]
    if "files" not in how:
        state["keys"] = jax.random.split(jax.random.key(5), 3)
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(path, state)


if __name__ == "__main__":
    action, path, how = sys.argv[1:]
    if action == "write":
        write(Path(path), how)
    else:
        print(json.dumps(flat(restore(Path(path), how))))
