"""Saved from one mesh, restored on another, without reading more than is needed."""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import world_of
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxckpt
from jaxckpt import Options
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.restoring import Leniency, open_any, restore_tree
from jaxckpt.single import save_item
from jaxckpt.testing.faulty_store import READING, FaultyStore
from jaxckpt.testing.memory_store import MemoryStore

SPECS = [
    PartitionSpec(*spec)
    for spec in [(), ("x",), (None, "y"), ("x", "y"), ("y", "x"), (("x", "y"),), (None, ("y", "x"))]
]
MESHES = [(8, 1), (4, 2), (2, 4), (1, 4), (2, 1), (1, 1)]


def mesh_of(shape: tuple[int, int]) -> Mesh:
    devices = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    return Mesh(devices, ("x", "y"))


def shardings() -> list[NamedSharding]:
    return [NamedSharding(mesh_of(m), s) for m, s in itertools.product(MESHES, SPECS)]


@pytest.mark.parametrize("spec", SPECS)
def test_from_each_sharding_to_every_other(tmp_path: Path, mesh: Mesh, spec: PartitionSpec) -> None:
    array = np.random.default_rng(0).random((256, 192)).astype(np.float32)
    small = np.arange(64, dtype=np.int8).reshape(8, 8)
    source = NamedSharding(mesh, spec)
    state = {"w": jax.device_put(array, source), "small": jax.device_put(small, source)}
    jaxckpt.save(tmp_path / "c", state, options=Options(chunk_bytes=4096))
    for target in shardings():
        abstract = {
            "w": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=target),
            "small": jax.ShapeDtypeStruct(small.shape, small.dtype, sharding=target),
        }
        restored = jaxckpt.restore(tmp_path / "c", abstract)
        assert restored["w"].sharding == target
        np.testing.assert_array_equal(restored["w"], array)
        np.testing.assert_array_equal(restored["small"], small)


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host", "device"])
def test_memory_kinds(tmp_path: Path, mesh: Mesh, kind: str) -> None:
    array = np.random.default_rng(0).random((256, 256))
    source = NamedSharding(mesh, PartitionSpec("x"), memory_kind=kind)
    jaxckpt.save(tmp_path / "c", {"w": jax.device_put(array, source)})
    for other in ("pinned_host", "unpinned_host", "device"):
        target = NamedSharding(mesh, PartitionSpec(None, "y"), memory_kind=other)
        abstract = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=target)
        restored = jaxckpt.restore(tmp_path / "c", {"w": abstract})["w"]
        assert restored.sharding.memory_kind == other
        np.testing.assert_array_equal(restored, array)


def test_single_devices(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((300, 300))
    for device in (jax.devices()[5], jax.devices()[0]):
        path = tmp_path / str(device.id)
        jaxckpt.save(path, {"w": jax.device_put(array, device)})
        for other in jax.devices()[:3]:
            sharding = SingleDeviceSharding(other)
            abstract = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
            restored = jaxckpt.restore(path, {"w": abstract})["w"]
            assert restored.devices() == {other}
            np.testing.assert_array_equal(restored, array)


@given(
    source=st.sampled_from(SPECS),
    target=st.sampled_from(SPECS),
    shape=st.tuples(st.sampled_from([64, 128]), st.sampled_from([64, 256])),
)
def test_reads_no_more_than_the_chunks_that_it_needs(
    source: PartitionSpec, target: PartitionSpec, shape: tuple[int, int]
) -> None:
    """Two of eight devices restore their part: the bytes read are those of the chunks they meet,
    each once, and the bytes written are those of the state."""
    rows, columns = shape[0] * 8, shape[1] * 8
    array = np.random.default_rng(0).random((rows, columns)).astype(np.float32)
    state = {"w": jax.device_put(array, NamedSharding(mesh_of((4, 2)), source))}
    inner = MemoryStore()
    options = Options(memory_budget_bytes=16 << 20, chunk_bytes=64 << 10)
    engine = Engine(1)
    saving = FaultyStore(inner)
    pool = HostPool(options.memory_budget_bytes)
    save_item(world_of(saving), options, engine, pool, "/c", state, force=False)
    assert saving.bytes_written < array.nbytes + (64 << 10) + 4096 * 2 * (array.nbytes >> 14)
    part = NamedSharding(mesh_of((2, 1)), target)
    abstract = {"w": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=part)}
    store = FaultyStore(inner, counted=READING)
    world = world_of(store)
    item = open_any(world, "/c")
    before = store.bytes_read
    restored = restore_tree(
        world, options, engine, world.coordinator.operation("restore"), item, abstract, Leniency()
    )
    engine.close()
    np.testing.assert_array_equal(restored["w"], array)
    chunks = len([k for k in item.index.keys if b"/c/" in k])
    assert store.bytes_read - before <= array.nbytes + 2 * 4096 * chunks


def test_a_part_of_the_leaves_reads_a_part_of_the_bytes() -> None:
    inner = MemoryStore()
    options = Options(memory_budget_bytes=16 << 20)
    engine = Engine(1)
    state = {f"w{k}": np.random.default_rng(k).random(100_000) for k in range(10)}
    pool = HostPool(options.memory_budget_bytes)
    save_item(world_of(inner), options, engine, pool, "/c", state, force=False)
    store = FaultyStore(inner, counted=READING)
    world = world_of(store)
    item = open_any(world, "/c")
    before = store.bytes_read
    one = restore_tree(
        world,
        options,
        engine,
        world.coordinator.operation("restore"),
        item,
        {"w3": state["w3"]},
        Leniency(allow_extra=True),
    )
    engine.close()
    np.testing.assert_array_equal(one["w3"], state["w3"])
    assert store.bytes_read - before < 1.1 * state["w3"].nbytes
