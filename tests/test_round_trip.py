"""Every leaf and every tree comes back exactly as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from hypothesis import given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.flatten import EmptyNode, flatten
from jaxckpt.testing.strategies import KEY_IMPLS, assert_same, bits_of, trees


@settings(max_examples=150)
@given(trees())
def test_any_tree_comes_back_with_a_target(tmp_path_factory: Any, tree: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "ckpt"
    jaxckpt.save(path, tree)
    assert_same(tree, jaxckpt.restore(path, tree))


@settings(max_examples=60)
@given(trees())
def test_any_tree_comes_back_without_a_target(tmp_path_factory: Any, tree: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "ckpt"
    jaxckpt.save(path, tree)
    restored = jaxckpt.restore(path)
    assert by_name(tree) == by_name(restored)


def by_name(tree: Any) -> dict[tuple[str, ...], Any]:
    """Leaves by the names on their path: a dataclass comes back as a dict, in another order."""
    return {
        tuple(name for _, name in path): "empty" if isinstance(x, EmptyNode) else bits_of(x)
        for path, x in flatten(tree).leaves
    }


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("direct_io", ["auto", "off"])
def test_every_option_keeps_every_bit(
    tmp_path: Path, mesh: Mesh, compression: Any, checksum: bool, direct_io: Any
) -> None:
    options = jaxckpt.Options(
        compression=compression,
        checksum=checksum,
        direct_io=direct_io,
        chunk_bytes=100_000,
        data_file_bytes=1 << 20,
        memory_budget_bytes=16 << 20,
    )
    rng = np.random.default_rng(1)
    big = rng.random((1024, 1024), np.float32)
    state = {
        "sharded": jax.device_put(big, NamedSharding(mesh, PartitionSpec("x", "y"))),
        "columns": jax.device_put(big, NamedSharding(mesh, PartitionSpec(None, "x"))),
        "replicated": jax.device_put(big[:300, :77], NamedSharding(mesh, PartitionSpec())),
        "fortran": np.asfortranarray(big[:700, :500]),
        "strided": big[::3, ::2],
        "odd": rng.random(99_991),
        "middle": rng.random(3000),
        "zeros": np.zeros((512, 512), np.int8),
        "empty": jnp.zeros((3, 0, 2)),
    }
    jaxckpt.save(tmp_path / "c", state, options=options)
    assert_same(state, jaxckpt.restore(tmp_path / "c", state, options=options))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_bit_pattern_of_every_dtype(tmp_path: Path, mesh: Mesh, name: str) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, 64 * 1024 * dtype.itemsize, np.uint8)
    if name == "bool" or dtype.itemsize == 1:
        raw = np.arange(64 * 1024, dtype=np.uint32).astype(np.uint8)
    if name == "bool":
        array = (raw & 1).astype(bool)
    elif name.startswith(("int2", "int4", "uint2", "uint4")):
        array = raw.astype(dtype)
    else:
        array = (raw & 15 if name == "float4_e2m1fn" else raw).view(dtype)
    array = array.reshape(256, 256)
    sharded = jax.device_put(array, NamedSharding(mesh, PartitionSpec("x", "y")))
    state = {
        "numpy": array,
        "jax": sharded,
        "scalar": array[0, 1],
        "zero_d": jnp.asarray(array[0, 3]),
    }
    jaxckpt.save(tmp_path / "c", state)
    assert_same(state, jaxckpt.restore(tmp_path / "c", state))
    assert bits_of(jaxckpt.restore(tmp_path / "c")["jax"]) == bits_of(np.asarray(sharded))


@pytest.mark.parametrize("impl", KEY_IMPLS)
def test_prng_keys(tmp_path: Path, mesh: Mesh, impl: str) -> None:
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    keys = jax.jit(
        lambda: jax.random.split(jax.random.key(7, impl=impl), 8), out_shardings=sharding
    )()
    state = {"one": jax.random.key(3, impl=impl), "many": keys}
    jaxckpt.save(tmp_path / "c", state)
    restored = jaxckpt.restore(tmp_path / "c", state)
    assert_same(state, restored)
    target = {"one": jax.eval_shape(lambda: state["one"]), "many": keys}
    assert_same(state, jaxckpt.restore(tmp_path / "c", target))
    assert jax.random.uniform(restored["one"]) == jax.random.uniform(state["one"])
    plain = jaxckpt.restore(tmp_path / "c")
    assert bits_of(plain["many"]) == bits_of(keys)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=False)(x)
        return nn.Dense(4)(x)


def test_flax_train_state_with_an_optax_chain(tmp_path: Path) -> None:
    model = Model()
    variables = model.init(jax.random.key(0), jnp.zeros((2, 8)))
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(
            optax.add_decayed_weights(0.1), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
        ),
        optax.adamw(optax.cosine_decay_schedule(1e-3, 100)),
        optax.identity(),
    )
    state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=tx)
    for path, value in (("a", state), ("b", variables)):
        jaxckpt.save(tmp_path / path, value)
        assert_same(value, jaxckpt.restore(tmp_path / path, value))
    abstract = jax.eval_shape(lambda s: s, state)
    restored = jaxckpt.restore(tmp_path / "a", abstract)
    assert_same(state.params, restored.params)
    plain = jaxckpt.restore(tmp_path / "a")
    assert plain["step"] == 0
    assert set(plain) == {"step", "params", "opt_state"}


def test_a_step_counter_may_be_a_number_or_an_array(tmp_path: Path) -> None:
    """Flax begins with the Python int 0, which becomes an array in the first jitted step."""
    jaxckpt.save(tmp_path / "int", {"step": 7, "rate": 0.5, "on": True})
    jaxckpt.save(
        tmp_path / "array", {"step": jnp.int32(7), "rate": jnp.float32(0.5), "on": jnp.array(True)}
    )
    numbers = {"step": 0, "rate": 0.0, "on": False}
    arrays = {"step": jnp.int32(0), "rate": jnp.float32(0), "on": jnp.array(False)}
    for name in ("int", "array"):
        found = jaxckpt.restore(tmp_path / name, numbers)
        assert bits_of_all(found) == bits_of_all({"step": 7, "rate": 0.5, "on": True})
        found = jaxckpt.restore(tmp_path / name, arrays)
        assert found["step"].dtype == np.int32
        assert found["rate"].dtype == np.float32
        assert [x.item() for x in jax.tree.leaves(found)] == [True, 0.5, 7]
    jaxckpt.save(tmp_path / "wide", {"step": 2**40, "rate": 0.1})
    with pytest.raises(jaxckpt.TreeMismatchError) as caught:
        jaxckpt.restore(tmp_path / "wide", {k: arrays[k] for k in ("step", "rate")})
    assert len(caught.value.mismatches) == 2


def test_nnx_state(tmp_path: Path) -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(3, 4, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    net = Net(nnx.Rngs(0))
    state = nnx.state(net)
    jaxckpt.save(tmp_path / "c", state)
    restored = jaxckpt.restore(tmp_path / "c", state)
    assert_same(state, restored)
    nnx.update(net, restored)
    plain = jaxckpt.restore(tmp_path / "c")
    np.testing.assert_array_equal(plain["linear"]["kernel"]["value"], net.linear.kernel[...])


def test_bare_leaves_and_empty_trees(tmp_path: Path) -> None:
    for k, state in enumerate(
        ({}, [], (), None, 3, "text", np.arange(3), jnp.ones((2, 2)), [{}, ()])
    ):
        jaxckpt.save(tmp_path / str(k), state)
        assert_same(state, jaxckpt.restore(tmp_path / str(k), state))
        assert bits_of_all(jaxckpt.restore(tmp_path / str(k))) == bits_of_all(state)


def bits_of_all(tree: Any) -> list[Any]:
    return [bits_of(x) for x in jax.tree.leaves(tree, is_leaf=lambda x: x is None)]


def test_the_state_may_change_once_save_has_returned(tmp_path: Path, mesh: Mesh) -> None:
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    bump = jax.jit(lambda x: x + 1, donate_argnums=0)
    options = jaxckpt.Options(memory_budget_bytes=16 << 20)
    with jaxckpt.Checkpointer(tmp_path / "run", options=options) as ckpt:
        x = bump(jax.device_put(np.zeros((2048, 2048), np.float32), sharding))
        host = np.zeros(500_000)
        for step in range(1, 6):
            ckpt.save(step, {"x": x, "host": host})
            x = bump(x)
            host += 1
        ckpt.wait()
        for step in range(1, 6):
            found = ckpt.restore(step=step)
            assert (found["x"] == step).all()
            assert (found["host"] == step - 1).all()


def test_restored_arrays_are_independent_of_one_another(tmp_path: Path, mesh: Mesh) -> None:
    """Replicas share memory on the CPU backend; a donation of one must not show in another."""
    replicated = NamedSharding(mesh, PartitionSpec())
    state = {"a": jax.device_put(np.ones((300, 300), np.float32), replicated)}
    jaxckpt.save(tmp_path / "c", state)
    restored = jaxckpt.restore(tmp_path / "c", state)
    again = jaxckpt.restore(tmp_path / "c", state)
    bumped = jax.jit(lambda x: x * 5, donate_argnums=0)(restored["a"])
    for shard in bumped.addressable_shards:
        assert (np.asarray(shard.data) == 5).all()
    np.testing.assert_array_equal(again["a"], state["a"])
    assert jaxckpt.restore(tmp_path / "c")["a"].flags.writeable


def test_an_uncommitted_array_stays_uncommitted(tmp_path: Path, mesh: Mesh) -> None:
    state = {"w": jnp.ones((4, 4))}
    jaxckpt.save(tmp_path / "c", state)
    restored = jaxckpt.restore(tmp_path / "c", state)
    batch = jax.device_put(np.ones((8, 4)), NamedSharding(mesh, PartitionSpec("x")))
    jax.jit(lambda w, x: x @ w)(restored["w"], batch)  # refused if w were committed to one device
