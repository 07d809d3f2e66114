"""Transfers from accelerators, with CPU devices that say they were some."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.device import cutting, transfer
from jaxckpt.device.transfer import Transfers
from jaxckpt.errors import DonatedTooEarlyError
from jaxckpt.testing.strategies import assert_same


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices across a bus; gives the sizes of what was sent to pinned host memory, in order."""
    monkeypatch.setattr(transfer, "is_far", lambda device: True)
    monkeypatch.setattr(cutting, "needs_cut", lambda shard: True)
    monkeypatch.setattr(transfer, "needs_cut", lambda shard: True)
    sent: list[int] = []
    to_host = transfer._to_host

    def noted(shard: jax.Array) -> jax.Array:
        sent.append(shard.nbytes)
        arriving = to_host(shard)
        assert arriving.sharding.memory_kind == "pinned_host"
        return arriving

    monkeypatch.setattr(transfer, "_to_host", noted)
    return sent


def state(mesh: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    spec = {
        "rows": PartitionSpec("x"),
        "both": PartitionSpec("x", "y"),
        "everywhere": PartitionSpec(),
    }
    arrays: dict[str, Any] = {
        name: jax.device_put(rng.random((256, 512), np.float32), NamedSharding(mesh, s))
        for name, s in spec.items()
    }
    for dtype in (jnp.bfloat16, jnp.int4, bool, jnp.float8_e5m2, jnp.complex64, jnp.uint8):
        bits = rng.integers(0, 2, (64, 80))
        arrays[jnp.dtype(dtype).name] = jnp.asarray(bits, dtype)
    arrays["number"] = jnp.float32(3.5)
    arrays["key"] = jax.random.key(7)
    arrays["host"] = rng.random(1000)
    return arrays


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_is_sent_comes_back_to_the_bit(
    tmp_path: Path, mesh: Any, far: list[int], whole: bool, compression: Any
) -> None:
    options = jaxckpt.Options(
        chunk_bytes=64 << 10,
        compression=compression,
        memory_budget_bytes=(256 if whole else 16) << 20,
    )
    made = state(mesh)
    with jaxckpt.Checkpointer(tmp_path / "run", options=options) as ckpt:
        for step in range(3):
            ckpt.save(step, made, lazy=step == 2)
        ckpt.wait()
        for step in range(3):
            assert_same(made, ckpt.restore(made, step=step))
    distinct = sum(x.nbytes for x in made.values() if isinstance(x, jax.Array) and x.ndim)
    assert sum(far) >= 3 * (distinct - 64 * 80)  # int4 takes half a byte here and there


def test_nothing_is_compiled_in_the_steady_state(tmp_path: Path, mesh: Any, far: list[int]) -> None:
    made = state(mesh)
    cutting._cutter.cache_clear()
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(0, made)
        compiled = cutting._cutter.cache_info().misses
        for step in range(1, 4):
            ckpt.save(step, jax.tree.map(lambda x: x, made))
        assert cutting._cutter.cache_info().misses == compiled


def test_transfers_keep_to_their_limit_and_a_large_one_goes_alone(mesh: Any) -> None:
    class Chunk:
        def __init__(self, nbytes: int) -> None:
            self.nbytes, self.device = nbytes, -1

    transfers = Transfers(100, lambda: False)
    begin = lambda *sizes: [(None, Chunk(n)) for n in sizes]  # noqa: E731
    large, small, more = begin(1000), begin(40, 60), begin(1)
    transfers.begin(large)  # pyright: ignore[reportArgumentType]
    begun = threading.Event()

    def second() -> None:
        transfers.begin(small)  # pyright: ignore[reportArgumentType]
        begun.set()
        transfers.begin(more)  # pyright: ignore[reportArgumentType]

    thread = threading.Thread(target=second)
    thread.start()
    assert not begun.wait(0.2)
    transfers.done(large)  # pyright: ignore[reportArgumentType]
    assert begun.wait(10)
    assert transfers._under_way == 100
    transfers.done(small)  # pyright: ignore[reportArgumentType]
    thread.join(10)
    assert transfers._under_way == 1


def test_a_save_that_failed_waits_for_no_room() -> None:
    class Chunk:
        nbytes, device = 10, -1

    transfers = Transfers(10, lambda: True)
    for _ in range(3):
        transfers.begin([(None, Chunk())])  # pyright: ignore[reportArgumentType]


def test_an_array_that_is_gone_before_its_transfer_is_told_by_name(
    tmp_path: Path, mesh: Any, far: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = state(mesh)
    begin = Transfers.begin

    def late(self: Transfers, chunks: Any) -> Any:
        made["both"].delete()
        return begin(self, chunks)

    monkeypatch.setattr(Transfers, "begin", late)
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, made, lazy=True)
        ckpt.wait_staged()
        with pytest.raises(DonatedTooEarlyError, match="leaf 'both' was donated"):
            ckpt.wait()
        assert ckpt.steps() == []
