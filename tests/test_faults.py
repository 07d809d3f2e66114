"""Every call of a save made to fail, every sync forgotten, every point a crash."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from conftest import world_of
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt import Options
from jaxckpt.checkpointer import Checkpointer
from jaxckpt.errors import CheckpointNotFoundError, JaxckptError, StorageError
from jaxckpt.io.store import Store
from jaxckpt.testing.faulty_store import MUTATING, READING, FaultyStore, KilledError
from jaxckpt.testing.memory_store import MemoryStore

RUN = "/run"
OPTIONS = Options(memory_budget_bytes=16 << 20, data_file_bytes=1 << 20, chunk_bytes=256 << 10)
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT)


@pytest.fixture(scope="module")
def states() -> list[Any]:
    """Three states of one shape with values that tell them apart; two data files each."""
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    rng = np.random.default_rng(0)
    return [
        {
            "w": jax.device_put(rng.random((512, 512), np.float32), sharding),
            "v": jax.device_put(rng.random((512, 512), np.float32), sharding),
            "small": np.full(3, k, np.int32),
            "step": k,
        }
        for k in range(3)
    ]


def checkpointer(store: Store, **kwargs: Any) -> Checkpointer:
    return Checkpointer(RUN, options=OPTIONS, world=world_of(store), journal=False, **kwargs)


def run_saves(store: Store, states: list[Any], *, force_last: bool = False) -> list[int]:
    """Saves steps 1 and 2, keeping one; returns the steps that were acknowledged as durable."""
    done: list[int] = []
    ckpt = None
    try:
        ckpt = checkpointer(store, keep_last=1)
        for step in (1, 2):
            ckpt.save(step, states[step])
            ckpt.wait()
            done.append(step)
        if force_last:
            ckpt.save(2, states[0], force=True)
            ckpt.wait()
            done.append(0)
    finally:
        if ckpt is not None:
            ckpt._finalizer()
    return done


def check_after(store: Store, states: list[Any], acknowledged: list[int]) -> None:
    """What the next process must find: the newest acknowledged step or a newer one, whole; and
    after it has saved once more, no litter."""
    with checkpointer(store, keep_last=1) as ckpt:
        found, step = ckpt.restore_or(states[0])
        if acknowledged:
            assert step >= max(acknowledged[:2]), f"acknowledged {acknowledged}, found {step}"
        allowed = [0, 2] if 0 in acknowledged or step == 2 else [step]
        same = [k for k in allowed if found["step"] == k]
        assert same, f"step {step} holds the state of {found['step']}"
        for name in ("w", "v", "small"):
            np.testing.assert_array_equal(found[name], states[same[0]][name])
        if acknowledged and acknowledged[-1] == 0:
            assert same[0] == 0, "the replaced step came back"
        ckpt.save(9, states[1])
        ckpt.wait()
        assert ckpt.steps() == [9]
    assert store.list_dir(RUN) == ["9"], store.list_dir(RUN)


def calls_of_a_run(states: list[Any], *, force_last: bool = False) -> list[tuple[str, str]]:
    store = FaultyStore(MemoryStore())
    run_saves(store, states, force_last=force_last)
    return store.calls


def numbers(calls: list[Any], every: int = 1) -> Iterator[int]:
    return iter(range(1, len(calls) + 1, every))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("force_last", [False, True])
def test_a_kill_at_any_call_leaves_the_old_step_or_the_new_one(
    states: list[Any], after: bool, force_last: bool
) -> None:
    calls = calls_of_a_run(states, force_last=force_last)
    assert len(calls) > 60
    for k in numbers(calls):
        inner = MemoryStore()
        with_fault = FaultyStore(inner, fail_at=k, after=after)
        done: list[int] = []
        try:
            done = run_saves(with_fault, states, force_last=force_last)
        except KilledError:
            done = acknowledged_by(with_fault)
        check_after(inner.kill(), states, done)


@pytest.mark.parametrize("after", [False, True])
def test_a_loss_of_power_at_any_call_leaves_the_old_step_or_the_new_one(
    states: list[Any], after: bool
) -> None:
    calls = calls_of_a_run(states, force_last=True)
    for k in numbers(calls):
        inner = MemoryStore()
        with_fault = FaultyStore(inner, fail_at=k, after=after)
        try:
            done = run_saves(with_fault, states, force_last=True)
        except KilledError:
            done = acknowledged_by(with_fault)
        for seed in (None, 1, 2):
            chance = None if seed is None else random.Random(1000 * k + seed)
            check_after(inner.crash(chance), states, done)


def test_without_exchange_a_kill_or_loss_of_power_leaves_the_old_step_or_the_new_one(
    states: list[Any],
) -> None:
    store = FaultyStore(MemoryStore(has_exchange=False))
    run_saves(store, states, force_last=True)
    for k in range(len(store.calls) // 2, len(store.calls) + 1):
        inner = MemoryStore(has_exchange=False)
        with_fault = FaultyStore(inner, fail_at=k)
        try:
            done = run_saves(with_fault, states, force_last=True)
        except KilledError:
            done = acknowledged_by(with_fault)
        check_after(inner.kill(), states, done)
        check_after(inner.crash(), states, done)
        check_after(inner.crash(random.Random(k)), states, done)


def acknowledged_by(store: FaultyStore) -> list[int]:
    """Steps that were durable before the kill: their publishing sync of the run's directory, and
    for the replaced step the one after the exchange, had been carried out."""
    calls = [
        call
        for k, call in enumerate(store.calls, 1)
        if not store._fails(k) or (store._after and k == store._fail_at)
    ]
    done: list[int] = []
    pending: int | None = None
    for kind, path in calls:
        if kind == "rename" and path in (f"{RUN}/1", f"{RUN}/2"):
            pending = int(path[-1])
        elif kind == "exchange":
            pending = 0
        elif kind == "sync_dir" and path == RUN and pending is not None:
            if pending != 0 or store._inner._has_exchange:
                done.append(pending)
            pending = None
    return done


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("number", ERRNOS)
def test_an_error_at_any_call_is_reported_and_harms_no_older_step(
    states: list[Any], number: int, sticky: bool
) -> None:
    calls = calls_of_a_run(states)
    every = 1 if number == errno.ENOSPC else 3
    for k in numbers(calls, every):
        inner = MemoryStore()
        store = FaultyStore(inner, fail_at=k, error=number, sticky=sticky)
        with pytest.raises(StorageError) as caught:
            run_saves(store, states)
        assert caught.value.errno == number, f"call {k}: {calls[k - 1]}"
        done = [s for s in acknowledged_by(store) if s in (1, 2)]
        check_after(inner.kill(), states, done)
        check_after(inner.crash(), states, done)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_failed_save_is_raised_once_and_the_next_one_works(
    states: list[Any], number: int
) -> None:
    for kind in ("write", "sync", "rename", "sync_dir"):
        first = FaultyStore(MemoryStore(), counted=frozenset({kind}))
        with checkpointer(first) as ckpt:
            ckpt.save(1, states[1])
            ckpt.wait()
        before = len(first.calls)
        store = FaultyStore(
            MemoryStore(), counted=frozenset({kind}), fail_at=before + 1, error=number
        )
        with checkpointer(store) as ckpt:
            ckpt.save(1, states[1])
            ckpt.wait()
            with pytest.raises(StorageError, match=kind.replace("_dir", "")):
                ckpt.save(2, states[2])
                ckpt.wait()
            assert ckpt.steps()[0] == 1
            ckpt.save(3, states[2])
            ckpt.wait()
            assert ckpt.steps()[-1] == 3


def test_every_sync_of_a_save_is_needed(states: list[Any]) -> None:
    """The mutants of the commit order: each sync in turn is forgotten, then power is lost after
    the save was acknowledged. Every one of them must be seen to lose the step."""
    store = FaultyStore(MemoryStore())
    with checkpointer(store) as ckpt:
        ckpt.save(1, states[1])
        ckpt.wait()
    syncs = [i + 1 for i, (kind, _) in enumerate(store.calls) if kind in ("sync", "sync_dir")]
    assert len(syncs) > 12
    for k in syncs:
        inner = MemoryStore()
        with checkpointer(FaultyStore(inner, skip=frozenset({k}))) as ckpt:
            ckpt.save(1, states[1])
            ckpt.wait()
        name = store.calls[k - 1]
        assert not survives(inner.crash(), states[1]), f"without {name} nothing was lost"
    inner = MemoryStore()
    with checkpointer(inner) as ckpt:
        ckpt.save(1, states[1])
        ckpt.wait()
    assert survives(inner.crash(), states[1])


def survives(store: MemoryStore, state: Any) -> bool:
    """Whether step 1 is there, whole down to the files that only other readers use."""
    try:
        with checkpointer(store) as ckpt:
            if ckpt.steps() != [1]:
                return False
            found = ckpt.restore(state, step=1)
    except JaxckptError:
        return False
    return all(np.array_equal(found[k], state[k]) for k in state)


def test_every_sync_of_a_removal_is_needed(states: list[Any]) -> None:
    """Forgetting the sync after the rename to trash may bring half a step back."""
    store = FaultyStore(MemoryStore())
    with checkpointer(store, keep_last=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, states[step])
            ckpt.wait()
    renames = [i for i, c in enumerate(store.calls) if c[0] == "rename" and "trash" in c[1]]
    assert len(renames) == 1
    sync = renames[0] + 2
    assert store.calls[sync - 1] == ("sync_dir", RUN)
    assert all(kind == "remove" for kind, _ in store.calls[sync:])


def test_a_live_save_is_not_cleaned_up_by_another_process(states: list[Any]) -> None:
    store = MemoryStore()
    with checkpointer(store) as ckpt:
        ckpt.save(1, states[1])
        with checkpointer(store) as other:
            assert other.steps() in ([], [1])
        ckpt.wait()
        assert ckpt.steps() == [1]
        np.testing.assert_array_equal(ckpt.restore(states[0])["w"], states[1]["w"])


def test_two_saves_of_one_step_at_once_one_wins_and_the_other_is_told(states: list[Any]) -> None:
    store = MemoryStore()
    one, other = checkpointer(store), checkpointer(store)
    outcomes: list[int] = []
    errors = 0
    one.save(1, states[1])
    for ckpt, value in ((other, 2), (one, 1)):
        try:
            if value == 2:
                ckpt.save(1, states[2])
            ckpt.close()
            outcomes.append(value)
        except JaxckptError as error:
            assert "exists" in str(error)
            errors += 1
    assert (len(outcomes), errors) == (1, 1)
    with checkpointer(store) as ckpt:
        assert ckpt.restore(states[0])["step"] == outcomes[0]
    assert store.list_dir(RUN) == ["1"]


def test_an_error_while_reading_is_reported_and_returns_nothing(states: list[Any]) -> None:
    inner = MemoryStore()
    with checkpointer(inner) as ckpt:
        ckpt.save(1, states[1])
    counting = FaultyStore(inner, counted=READING)
    with checkpointer(counting) as ckpt:
        ckpt.restore(states[0])
    for k in range(1, len(counting.calls) + 1):
        store = FaultyStore(inner, counted=READING, fail_at=k, error=errno.EIO, sticky=True)
        with pytest.raises((StorageError, CheckpointNotFoundError)):
            with checkpointer(store) as ckpt:
                ckpt.restore(states[0])


def test_each_stored_byte_is_read_at_most_once(states: list[Any]) -> None:
    inner = MemoryStore()
    with checkpointer(inner) as ckpt:
        ckpt.save(1, states[1])
    store = FaultyStore(inner, counted=MUTATING)
    with checkpointer(store) as ckpt:
        before = store.bytes_read
        ckpt.restore(states[0], step=1)
    arrays = sum(states[1][k].nbytes for k in ("w", "v", "small"))
    small_files = 128 << 10  # sidecar, index, manifests; once to list and once to open
    assert store.bytes_read - before < arrays + small_files


@pytest.mark.parametrize("has_exchange", [True, False])
def test_an_error_around_the_swap_of_a_replacement_keeps_one_of_both_under_the_name(
    states: list[Any], has_exchange: bool
) -> None:
    """Each call of the commit fails once; the name is there at once, and after loss of power."""
    counting = FaultyStore(MemoryStore(has_exchange=has_exchange))
    with checkpointer(counting) as ckpt:
        ckpt.save(2, states[1])
        ckpt.wait()
        first = len(counting.calls)
        ckpt.save(2, states[2], force=True)
        ckpt.wait()
    for k in range(first + 1, len(counting.calls) + 1):
        inner = MemoryStore(has_exchange=has_exchange)
        store = FaultyStore(inner, fail_at=k, error=errno.EIO)
        with checkpointer(store) as ckpt:
            ckpt.save(2, states[1])
            ckpt.wait()
            with pytest.raises(StorageError):
                ckpt.save(2, states[2], force=True)
                ckpt.wait()
            assert ckpt.steps() == [2], counting.calls[k - 1]
        for after in (inner.kill(), inner.crash(), inner.crash(random.Random(k))):
            with checkpointer(after) as ckpt:
                found, step = ckpt.restore_or(states[0])
                assert step == 2
                assert found["step"] in (1, 2)
                np.testing.assert_array_equal(found["w"], states[found["step"]]["w"])


def test_a_step_put_aside_by_a_live_writer_is_not_taken(states: list[Any]) -> None:
    """Another process starts between the two renames of a file system without exchange."""
    inner = MemoryStore(has_exchange=False)
    with checkpointer(inner) as ckpt:
        ckpt.save(2, states[1])

    class Looking(FaultyStore):
        def rename(self, source: str, target: str) -> None:
            if target == f"{RUN}/2" and "-tmp-" in source:
                with checkpointer(inner) as other:
                    assert other.steps() == []
            super().rename(source, target)

    with checkpointer(Looking(inner)) as ckpt:
        ckpt.save(2, states[2], force=True)
        ckpt.wait()
        assert ckpt.restore(states[0])["step"] == 2
    assert inner.list_dir(RUN) == ["2"]


def test_an_exchange_that_is_done_and_reported_as_failed_loses_neither(states: list[Any]) -> None:
    inner = MemoryStore()
    store = FaultyStore(
        inner, counted=frozenset({"exchange"}), fail_at=1, error=errno.EIO, after=True
    )
    with checkpointer(store) as ckpt:
        ckpt.save(2, states[1])
        ckpt.wait()
        with pytest.raises(StorageError):
            ckpt.save(2, states[2], force=True)
            ckpt.wait()
    for after in (inner.kill(), inner.crash()):
        with checkpointer(after) as ckpt:
            found = ckpt.restore(states[0])
            assert found["step"] in (1, 2)
            np.testing.assert_array_equal(found["w"], states[found["step"]]["w"])
        assert after.list_dir(RUN) == ["2"]


def test_a_file_that_is_shorter_than_announced_is_not_committed(
    states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxckpt.errors import DamagedCheckpointError
    from jaxckpt.testing.memory_store import MemoryWriter

    real = MemoryWriter.sync

    def losing(self: MemoryWriter) -> None:
        if len(self._file.data) > 500_000:
            del self._file.data[-1:]
        real(self)

    monkeypatch.setattr(MemoryWriter, "sync", losing)
    with checkpointer(MemoryStore()) as ckpt:
        ckpt.save(1, states[1])
        with pytest.raises(DamagedCheckpointError, match="were written"):
            ckpt.wait()
        assert ckpt.steps() == []
