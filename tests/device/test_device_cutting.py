"""Parts of shards are cut on the device by functions that are compiled once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from conftest import world_of
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Options
from jaxckpt.checkpointer import Checkpointer
from jaxckpt.device import host_view
from jaxckpt.device.cutting import cut, needs_cut
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.testing.memory_store import MemoryStore


@pytest.mark.parametrize("dtype", tuple(DTYPES))
def test_parts_are_exact_for_every_dtype(dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind = DTYPES[dtype]
    if dtype == "bool":
        whole = rng.integers(0, 2, (6, 10)).astype(bool)
    elif dtype.startswith(("int2", "uint2", "int4", "uint4", "float4")):
        whole = rng.integers(0, 2, (6, 10)).astype(kind)
    else:
        whole = rng.integers(0, 256, 60 * kind.itemsize, np.uint8).view(kind).reshape(6, 10)
    part = np.asarray(cut(jax.device_put(whole), (2, 5), (3, 4)))
    assert part.dtype == kind
    assert part.tobytes() == whole[2:5, 5:9].tobytes()


def test_a_second_save_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator: chunks that are parts of a shard are cut on the device."""
    monkeypatch.setattr(host_view, "needs_cut", lambda shard: True)
    compiled: list[str] = []

    def listen(event: str, seconds: float, **kwargs: Any) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    rng = np.random.default_rng(1)
    state = {
        f"w{k}": jax.device_put(rng.random((1024, 256), np.float32), sharding) for k in range(12)
    }
    cuts: list[int] = []
    real = host_view.cut
    monkeypatch.setattr(host_view, "cut", lambda *a: cuts.append(1) or real(*a))
    options = Options(memory_budget_bytes=16 << 20, chunk_bytes=64 << 10)
    with Checkpointer("/run", options=options, world=world_of(MemoryStore())) as ckpt:
        ckpt.save(1, state)
        first = len(compiled)
        assert len(cuts) == 12 * 8 * 2
        assert first <= 8 * 2, "one function for each shape and device"
        ckpt.save(2, state)
        ckpt.wait()
        assert len(compiled) == first
        found = ckpt.restore(state)
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value)
    jax.monitoring.clear_event_listeners()


def test_views_serve_on_the_cpu() -> None:
    assert not needs_cut(jax.numpy.ones(3))
    assert jaxckpt.__version__
