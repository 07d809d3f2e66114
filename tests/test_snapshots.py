"""Several snapshots in flight while the storage is stuck: what is dropped, kept, told."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import world_of
from held_store import PATIENCE_SECS, HeldStore

from jaxckpt import Checkpointer, Options, policy
from jaxckpt.errors import JaxckptError, StepExistsError, StorageError
from jaxckpt.ettr.records import JOURNAL_NAME, parse_journal
from jaxckpt.in_flight import InFlight
from jaxckpt.io.store import Store, read_file
from jaxckpt.testing.faulty_store import FaultyStore, KilledError
from jaxckpt.testing.memory_store import MemoryStore

RUN = "/run"
BUDGET = 16 << 20
pytestmark = pytest.mark.timeout(60)


def state(k: int) -> dict[str, Any]:
    return {"w": np.full(3000, k), "k": k}


def checkpointer(store: Store, in_flight: int = 2, **kwargs: Any) -> Checkpointer:
    options = Options(memory_budget_bytes=BUDGET, in_flight=in_flight)
    return Checkpointer(RUN, options=options, world=world_of(store), **kwargs)


def records(store: Store, kind: str) -> list[dict[str, Any]]:
    """The facts of all records of a kind, in order."""
    journal = parse_journal(read_file(store, f"{RUN}/{JOURNAL_NAME}", 1 << 20, RUN))
    return [dict(r.facts) for r in journal.records if r.kind == kind]


def all_given_back(ckpt: Checkpointer) -> bool:
    """Whether the pool has all of its blocks again."""
    return ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes


def check(store: Store, steps: list[int]) -> None:
    """These steps are there and no others, each as it was saved."""
    with checkpointer(store, journal=False) as ckpt:
        assert ckpt.steps() == steps
        for step in steps:
            found = ckpt.restore(state(0), step=step)
            assert found["k"] == step
            np.testing.assert_array_equal(found["w"], state(step)["w"])
    assert sorted(set(store.list_dir(RUN)) - {JOURNAL_NAME}, key=int) == [str(s) for s in steps]


class Waiting:
    """Runs a call that has to wait for room in a thread of its own; `until_full` says it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
        full = threading.Event()
        has_room = InFlight._has_room

        def looked(self: InFlight, blocks: int) -> bool:
            room = has_room(self, blocks)
            if not room:
                full.set()
            return room

        monkeypatch.setattr(InFlight, "_has_room", looked)
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert full.wait(PATIENCE_SECS)

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(PATIENCE_SECS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


# -- what is dropped -------------------------------------------------------------------------------


def test_training_never_waits_for_a_stuck_storage_where_old_snapshots_may_go() -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store, keep_last=1) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        for step in range(2, 50):
            assert ckpt.save(step, state(step))
            assert ckpt.steps() == []
        store.let()
        ckpt.wait()
        assert ckpt.steps() == [49]
        assert ckpt.dropped == 47
        assert all_given_back(ckpt)
        assert ckpt._pool.peak_bytes <= BUDGET
    assert store.named == [1, 49]
    assert [r["step"] for r in records(inner, "dropped")] == list(range(2, 49))
    assert [r["newer"] for r in records(inner, "dropped")] == list(range(3, 50))
    assert [r["step"] for r in records(inner, "durable")] == [1, 49]
    assert [r["step"] for r in records(inner, "save")] == list(range(1, 50))
    check(inner, [49])


def test_the_newest_is_written_first_and_older_ones_that_wait_go() -> None:
    store = HeldStore(MemoryStore())
    store.hold()
    with checkpointer(store, in_flight=4, keep_last=3) as ckpt:
        for step in (1, 2, 3, 4):
            ckpt.save(step, state(step))
            store.wait_until_held(1)
        store.let()
        ckpt.wait()
        assert ckpt.steps() == [1, 4]
        assert ckpt.dropped == 2
    assert store.named == [1, 4]


def test_where_all_is_kept_nothing_is_dropped_and_the_loop_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        ckpt.save(2, state(2))
        third = Waiting(monkeypatch, lambda: ckpt.save(3, state(3)))
        assert third.waits
        store.let(1)
        third.end()
        assert store.named[0] == 1
        store.let()
        ckpt.wait()
        assert ckpt.dropped == 0
    waited = [r["waited"] for r in records(inner, "save")]
    assert waited[2] > 0  # of the real clock
    check(inner, [1, 2, 3])


def test_steps_that_the_policy_wants_are_not_dropped() -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    keep = policy.KeepLast(1) | policy.KeepEverySteps(10)
    with checkpointer(store, in_flight=3, keep_policy=keep) as ckpt:
        for step in range(8, 14):
            ckpt.save(step, state(step))
            store.wait_until_held(8)
        store.let()
        ckpt.wait()
        assert ckpt.dropped == 3
    assert store.named == [8, 13, 10]
    check(inner, [10, 13])


def test_the_best_by_a_metric_is_not_dropped() -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store, in_flight=3, keep_policy=policy.KeepBest(1, "loss")) as ckpt:
        for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, 2.0], 1):
            ckpt.save(step, state(step), metrics={"loss": loss})
            store.wait_until_held(1)
        store.let()
        ckpt.wait()
    assert store.named == [1, 5, 2]
    check(inner, [2, 5])


def test_forced_saves_are_not_dropped() -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store, in_flight=3, keep_last=10) as ckpt:
        for step in range(1, 7):
            ckpt.save(step, state(step), force=step == 3)
            store.wait_until_held(1)
        store.let()
        ckpt.wait()
    assert store.named == [1, 6, 3]
    check(inner, [1, 3, 6])


def test_with_one_in_flight_nothing_is_dropped() -> None:
    inner = MemoryStore()
    with checkpointer(inner, in_flight=1, keep_last=100) as ckpt:
        for step in range(20):
            ckpt.save(step, state(step))
        ckpt.wait()
        assert ckpt.dropped == 0
    check(inner, list(range(20)))


def test_going_back_keeps_what_is_saved_then() -> None:
    """Newest is the call, not the step."""
    store = HeldStore(MemoryStore())
    store.hold()
    with checkpointer(store, in_flight=3, keep_last=5) as ckpt:
        ckpt.save(7, state(7))
        store.wait_until_held(7)
        ckpt.save(9, state(9))
        ckpt.save(3, state(3))
        store.let()
        ckpt.wait()
        assert ckpt.steps() == [3, 7]
    assert store.named == [7, 3]


# -- one step twice --------------------------------------------------------------------------------


def test_a_step_that_is_in_flight_is_there_already() -> None:
    store = HeldStore(MemoryStore())
    store.hold()
    with checkpointer(store, keep_last=1) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        ckpt.save(2, state(2))
        for step in (1, 2):
            with pytest.raises(StepExistsError, match="force=True"):
                ckpt.save(step, state(9))
        store.let()
        ckpt.wait()
        assert ckpt.restore(state(0))["k"] == 2
        assert ckpt.dropped == 0


def test_a_forced_save_of_a_step_in_flight_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store, in_flight=3) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        ckpt.save(2, state(8))
        waits = threading.Event()
        wait_for = InFlight.wait_for

        def told(self: InFlight, step: int, look: Any) -> None:
            waits.set()
            wait_for(self, step, look)

        monkeypatch.setattr(InFlight, "wait_for", told)
        again = threading.Thread(target=lambda: ckpt.save(2, state(2), force=True), daemon=True)
        again.start()
        assert waits.wait(PATIENCE_SECS)
        store.let()
        again.join(PATIENCE_SECS)
        ckpt.wait()
    assert store.named == [1, 2, 2]
    check(inner, [1, 2])


# -- errors ----------------------------------------------------------------------------------------


class FailingStore(HeldStore):
    """Writes of some steps fail, once they are let."""

    bad: frozenset[int] = frozenset()

    def do(self, kind: str, path: str, call: Callable[[], Any], skipped: Any = None) -> Any:
        def checked() -> Any:
            if kind == "write" and any(f"-tmp-{step}-" in path for step in self.bad):
                raise StorageError("write", path, OSError(errno.EIO, "bad disk"))
            return call()

        return super().do(kind, path, checked, skipped)


def test_a_failed_save_is_raised_by_the_next_call_which_saves_all_the_same() -> None:
    inner = MemoryStore()
    store = FailingStore(inner)
    store.bad = frozenset({2})
    with checkpointer(store) as ckpt:
        ckpt.save(1, state(1))
        ckpt.wait()
        ckpt.save(2, state(2))
        ckpt._saves._saves[-1].done.exception(PATIENCE_SECS)
        with pytest.raises(StorageError, match="EIO") as caught:
            ckpt.save(3, state(3))
        assert caught.value.__notes__ == ["step 3 is being saved nevertheless"]
        ckpt.save(4, state(4))
        ckpt.wait()
        assert all_given_back(ckpt)
    assert [r["step"] for r in records(inner, "failed")] == [2]
    assert [r["step"] for r in records(inner, "durable")] == [1, 3, 4]
    check(inner, [1, 3, 4])


def test_a_failed_save_does_not_end_the_one_that_waits() -> None:
    inner = MemoryStore()
    store = FailingStore(inner)
    store.bad = frozenset({1, 3})
    store.hold()
    with checkpointer(store, in_flight=3) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step))
            store.wait_until_held(1)
        store.let()
        with pytest.raises(StorageError, match="EIO") as caught:
            ckpt.wait()
        assert "besides, another save failed" in caught.value.__notes__[0]
        assert "-tmp-3-" in caught.value.__notes__[0]
        ckpt.wait()  # each is told once
        assert all_given_back(ckpt)
    check(inner, [2])


def test_a_snapshot_is_not_dropped_for_a_newer_one_that_fails() -> None:
    inner = MemoryStore()
    store = FailingStore(inner)
    store.bad = frozenset({3})
    store.hold()
    with checkpointer(store, in_flight=3, keep_last=1) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step))
            store.wait_until_held(1)
        store.let()
        with pytest.raises(StorageError, match="EIO"):
            ckpt.wait()
        assert ckpt.dropped == 0
    check(inner, [2])


def test_a_storage_that_fails_for_good_does_not_stop_the_loop() -> None:
    """Every call fails from somewhere in the first save on; the next saves raise, and none hangs."""
    count = FaultyStore(MemoryStore())
    with checkpointer(count, keep_last=1, journal=False) as ckpt:
        ckpt.save(1, state(1))
    for k in range(2, len(count.calls) + 1):
        inner = MemoryStore()
        ckpt = checkpointer(inner, keep_last=1, journal=False)
        store = FaultyStore(inner, fail_at=k, error=errno.EIO, sticky=True)
        ckpt.close()
        try:
            ckpt = checkpointer(store, keep_last=1, journal=False)
        except StorageError:
            continue
        told = 0
        for step in range(1, 6):
            try:
                ckpt.save(step, state(step))
                ckpt.wait()
            except StorageError:
                told += 1
        assert told >= 4
        assert all_given_back(ckpt)
        assert ckpt._saves._tools.in_flight.count == 0
        ckpt.close()


class Blind(FaultyStore):
    """Listing the run fails while it is blind."""

    blind = False

    def list_dir(self, path: str) -> list[str]:
        if self.blind and path == RUN:
            raise StorageError("list", path, OSError(errno.EIO, "blind"))
        return super().list_dir(path)


def test_a_run_that_can_not_be_listed_does_not_stop_the_loop() -> None:
    """Which steps there are is asked only once a step is durable."""
    inner = MemoryStore()
    store = Blind(inner)
    with checkpointer(store, keep_last=1) as ckpt:
        store.blind = True
        for step in range(1, 6):
            with pytest.raises(StorageError, match=r"list failed.*EIO"):
                ckpt.save(step, state(step))
                ckpt.wait()
        store.blind = False
        ckpt.save(6, state(6))
        ckpt.wait()
        assert ckpt.steps() == [6]
    check(inner, [6])


def test_a_policy_that_raises_does_not_stop_the_loop() -> None:
    class Raises:
        def should_preserve(self, checkpoints: Any, *, context: Any) -> Any:
            del checkpoints, context
            raise ZeroDivisionError

    store = HeldStore(MemoryStore())
    ckpt = checkpointer(store, keep_policy=Raises(), journal=False)
    told = 0
    for step in range(1, 8):
        try:
            ckpt.save(step, state(step))
        except ZeroDivisionError:
            told += 1
    try:
        ckpt.close()
    except ZeroDivisionError:
        told += 1
    assert told
    assert ckpt._saves._tools.in_flight.count == 0
    assert ckpt._saves._tools.retention._coming == {}


# -- Ctrl-C ----------------------------------------------------------------------------------------


def test_an_interrupt_while_waiting_for_room_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with checkpointer(store) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        ckpt.save(2, state(2))
        in_flight = ckpt._saves._tools.in_flight
        real = in_flight._has_room

        def interrupted(blocks: int) -> bool:
            if not real(blocks):
                raise KeyboardInterrupt
            return True

        monkeypatch.setattr(in_flight, "_has_room", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(3, state(3))
        assert [info.step for info in ckpt._saves._tools.retention.steps()] == [1, 2]
        store.let()
        ckpt.wait()
        ckpt.save(3, state(3))
        ckpt.wait()
        assert all_given_back(ckpt)
    check(inner, [1, 2, 3])


def test_an_interrupt_while_a_large_state_waits_for_its_turn_ends_the_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread must end too: the interpreter waits for it."""
    inner = MemoryStore()
    large = {"w": np.zeros(BUDGET // 4)}
    with checkpointer(inner, journal=False) as ckpt:
        real = threading.Event.wait

        def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
            if sys._getframe(1).f_code.co_name == "_copy_while_written":
                monkeypatch.setattr(threading.Event, "wait", real)
                raise KeyboardInterrupt
            return real(self, timeout)

        monkeypatch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(1, large)
        for thread in threading.enumerate():
            if thread.name.startswith("jaxckpt-save"):
                thread.join(PATIENCE_SECS)
                assert not thread.is_alive()
        assert all_given_back(ckpt)
        ckpt.save(2, state(2))
        ckpt.wait()
    check(inner, [2])


def test_an_error_in_the_loop_lets_all_in_flight_be_written() -> None:
    inner = MemoryStore()
    store = HeldStore(inner)
    store.hold()
    with pytest.raises(ZeroDivisionError), checkpointer(store) as ckpt:
        ckpt.save(1, state(1))
        store.wait_until_held(1)
        ckpt.save(2, state(2))
        store.let()
        raise ZeroDivisionError
    check(inner, [1, 2])


def test_an_error_in_the_loop_keeps_its_name_where_saves_fail_too() -> None:
    store = FailingStore(MemoryStore())
    store.bad = frozenset({1, 2})
    with pytest.raises(ZeroDivisionError) as caught, checkpointer(store) as ckpt:
        ckpt.save(1, state(1), lazy=True)
        raise ZeroDivisionError
    assert "EIO" in caught.value.__notes__[0]


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("keep", [{"keep_last": 1}, {}])
def test_a_death_with_two_in_flight_loses_nothing_that_was_durable(after: bool, keep: Any) -> None:
    def run(store: HeldStore) -> None:
        ckpt = checkpointer(store, journal=False, **keep)
        try:
            ckpt.save(1, state(1))
            ckpt.wait()
            store.hold()
            ckpt.save(2, state(2))
            ckpt.save(3, state(3))
            store.let()
            ckpt.wait()
        finally:
            store.let()
            try:
                ckpt.wait()
            finally:
                ckpt._finalizer()

    count = HeldStore(MemoryStore())
    run(count)
    assert count.named == [1, 2, 3]
    for k in range(1, len(count.calls) + 1):
        inner = MemoryStore()
        store = HeldStore(inner, fail_at=k, after=after)
        with contextlib.suppress(KilledError):
            run(store)
        durable = durable_steps(store)
        for left in (inner.kill(), inner.crash()):
            with checkpointer(left, keep_last=1, journal=False) as ckpt:
                found, step = ckpt.restore_or(state(0))
                assert step >= max(durable, default=0), (k, count.calls[k - 1])
                assert found["k"] == step
                np.testing.assert_array_equal(found["w"], state(step)["w"])
                if not keep:
                    assert set(durable) <= set(ckpt.steps())
                ckpt.save(9, state(9))
                ckpt.wait()
            assert left.list_dir(RUN) == ["9"]


def durable_steps(store: FaultyStore) -> list[int]:
    """Steps whose name was made durable before the death."""
    done: list[int] = []
    pending: list[int] = []
    for k, (kind, path) in enumerate(store.calls, 1):
        if store._fails(k) and not (store._after and k == store._fail_at):
            continue
        last = path.rpartition("/")[2]
        if kind == "rename" and last.isdigit():
            pending.append(int(last))
        elif kind == "sync_dir" and path == RUN:
            done += pending
            pending.clear()
    return done


def test_errors_are_jaxckpt_errors() -> None:
    assert issubclass(StepExistsError, JaxckptError)
