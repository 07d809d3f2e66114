"""Options(progress=True): every byte of a save and a restore is counted, and nothing else."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Checkpointer, Options, StorageError, policy
from jaxckpt._types import Processes
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.progress import Tally
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.virtual_job import MemoryKeys

OPTIONS = Options(memory_budget_bytes=16 << 20, progress=True)


class Told:
    """A display that remembers what it was told, in words."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self.ended: dict[str, tuple[int, int | None, bool]] = {}

    def begin(self, tally: Tally) -> None:
        self.tallies.append(tally)

    def end(self, tally: Tally, *, whole: bool) -> None:
        self.ended[tally.what] = tally.done_bytes, tally.total_bytes, whole


def state_of(megabytes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((megabytes, 1 << 18)).astype(np.float32),
        "small": np.arange(7),
        "n": 3,
    }


def memory_world(told: Told, store: Any = None) -> World:
    return World(store or MemoryStore(), Coordinator(), display=told)


def test_a_save_counts_what_is_written() -> None:
    told = Told()
    world = memory_world(told)
    with Checkpointer("/run", options=OPTIONS, world=world) as ckpt:
        ckpt.save(1, state_of(5))
        ckpt.wait()
    done, total, whole = told.ended["save of step 1 to /run"]
    found = world.store.stat("/run/1/default/ocdbt.process_0/d/data-00000")
    assert found is not None
    assert (done, total, whole) == (found.size, found.size, True)


def test_a_state_larger_than_the_budget_too() -> None:
    told = Told()
    with Checkpointer("/run", options=OPTIONS, world=memory_world(told)) as ckpt:
        ckpt.save(1, state_of(40))
        ckpt.wait()
    done, total, whole = told.ended["save of step 1 to /run"]
    assert whole
    assert done == total
    assert done > 40 << 20


def test_compressed_bytes_are_counted_without_a_total() -> None:
    told = Told()
    options = Options(memory_budget_bytes=64 << 20, compression="zstd", progress=True)
    with Checkpointer("/run", options=options, world=memory_world(told)) as ckpt:
        ckpt.save(1, {"w": np.zeros(1 << 20)})
        ckpt.wait()
    done, total, whole = told.ended["save of step 1 to /run"]
    assert total is None
    assert whole
    assert 0 < done < 1 << 20


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_restore_counts_what_is_placed(compression: Any) -> None:
    told = Told()
    options = Options(
        memory_budget_bytes=64 << 20, compression=compression, chunk_bytes=1 << 20, progress=True
    )
    state = state_of(6)
    arrays = state["w"].nbytes + state["small"].nbytes
    with Checkpointer("/run", options=options, world=memory_world(told)) as ckpt:
        ckpt.save(1, state)
        ckpt.restore_or(state)
    done, total, whole = told.ended["restore of step 1 of /run"]
    assert (done, total, whole) == (arrays, arrays, True)


def test_a_restore_onto_a_mesh_counts_what_lies_on_it(mesh: Mesh) -> None:
    told = Told()
    world = memory_world(told)
    rows = NamedSharding(mesh, PartitionSpec("x"))
    with Checkpointer("/run", options=OPTIONS, world=world) as ckpt:
        ckpt.save(1, {"w": np.arange(1 << 18, dtype=np.float32).reshape(64, -1)})
        target = {"w": jnp.zeros((64, 1 << 12), jnp.float32, device=rows)}
        ckpt.restore(target)
    done, total, whole = told.ended["restore of the newest step of /run"]
    assert whole
    assert done == total
    assert done % (1 << 20) == 0  # each region once, however many devices hold it


def test_a_restore_of_what_orbax_wrote(tmp_path: Path) -> None:
    told = Told()
    state = {"w": np.arange(1000, dtype=np.float32)}
    with ocp.StandardCheckpointer() as plain:
        plain.save(tmp_path / "run/4/default", state)
    world = World(LocalStore(), Coordinator(), display=told)
    with Checkpointer(tmp_path / "run", options=OPTIONS, world=world) as ckpt:
        ckpt.restore(state, step=4)
    assert told.ended[f"restore of step 4 of {tmp_path}/run"] == (4000, 4000, True)


def test_a_save_that_fails_ends_its_bar() -> None:
    told = Told()
    store = _Held(MemoryStore(), error=OSError(errno.EIO, "no"))
    store.free.set()
    with Checkpointer("/run", options=OPTIONS, world=memory_world(told, store)) as ckpt:
        ckpt.save(1, state_of(3))
        with pytest.raises(StorageError):
            ckpt.wait()
    assert not told.ended["save of step 1 to /run"][2]


def test_a_save_that_is_dropped_shows_nothing() -> None:
    told = Told()
    store = _Held(MemoryStore())
    options = Options(memory_budget_bytes=64 << 20, in_flight=2, progress=True)
    keep = policy.KeepLast(1)
    world = memory_world(told, store)
    with Checkpointer("/run", keep_policy=keep, options=options, world=world) as ckpt:
        ckpt.save(1, state_of(2))
        store.reached.wait(60)
        ckpt.save(2, state_of(2))
        ckpt.save(3, state_of(2))  # takes the room of step 2
        store.free.set()
        ckpt.wait()
        assert ckpt.dropped == 1
    assert {what.split()[3] for what in told.ended} == {"1", "3"}
    assert all(whole for _, _, whole in told.ended.values())


def test_silent_by_default(tmp_path: Path, capfd: Any) -> None:
    told = Told()
    options = Options(memory_budget_bytes=16 << 20)
    with Checkpointer("/run", options=options, world=memory_world(told)) as ckpt:
        ckpt.save(1, state_of(1))
        ckpt.restore(step=1)
    assert told.tallies == []
    jaxckpt.save(tmp_path / "one", state_of(1))
    assert capfd.readouterr() == ("", "")


def test_every_door_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(World.__init__, "__defaults__", (*World.__init__.__defaults__[:-1], told))
    state = {"w": np.arange(1 << 16, dtype=np.float32)}
    jaxckpt.save(tmp_path / "one", state, options=OPTIONS)
    jaxckpt.restore(tmp_path / "one", state, options=OPTIONS)
    handler = jaxckpt.ShardedCheckpointHandler(OPTIONS)
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler) as manager:
        manager.save(1, args=jaxckpt.ShardedSave(state))
        manager.wait_until_finished()
        manager.restore(1, args=jaxckpt.ShardedRestore(state))
    assert [tally.what.split()[0] for tally in told.tallies] == ["save", "restore"] * 2
    assert all(whole and done == total for done, total, whole in told.ended.values())


def test_only_the_primary_shows() -> None:
    told = Told()

    second = Coordinator(Processes(1, 2), MemoryKeys())
    with World(MemoryStore(), second, display=told).tally("save", 1, shown=True) as tally:
        tally.add(1)
    assert told.tallies == []
    assert tally.done_bytes == 0


class _Held(FaultyStore):
    """Making a data file waits until it is let go, or fails."""

    def __init__(self, store: MemoryStore, error: OSError | None = None) -> None:
        super().__init__(store)
        self.refusal = error
        self.reached, self.free = threading.Event(), threading.Event()

    def create(self, path: str, *, direct: bool) -> Any:
        if "/data-" in path:
            self.reached.set()
            self.free.wait(60)
            if self.refusal is not None:
                raise StorageError("create", path, self.refusal)
        return super().create(path, direct=direct)
