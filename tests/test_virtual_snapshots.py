"""Several snapshots in flight in jobs of many processes as threads: all write and drop the same."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import world_of
from held_store import HeldStore
from test_virtual_jobs import OPTIONS, state_of

from jaxckpt import Checkpointer, policy
from jaxckpt.errors import JaxckptError, PeerFailedError, PreemptedError, StorageError
from jaxckpt.io.store import Store
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore, KilledError
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.virtual_job import MemoryKeys, coordinators, run_job

RUN = "/run"
pytestmark = pytest.mark.timeout(90)
UNHURRIED = 0.02  # an hour is 72 s: nobody is missed while a test holds writes


def run(
    stores: list[Any],
    work: Callable[[Checkpointer, int], Any],
    dead: Any = lambda _: None,
    hurry: float = UNHURRIED,
    clocks: list[Callable[[], int]] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """What each process's work returned or raised; each has its own view of the store."""
    places = coordinators(len(stores), 8 // len(stores), MemoryKeys(hurry), dead=dead)

    def process(index: int) -> Any:
        base = world_of(stores[index])
        wall = clocks[index] if clocks else base.wall_ns
        steady = clocks[index] if clocks else base.monotonic_ns
        world = World(stores[index], places[index], wall, steady, base.random_bytes)
        ckpt = Checkpointer(RUN, options=OPTIONS, world=world, journal=False, **kwargs)
        try:
            return work(ckpt, index)
        finally:
            try:
                ckpt.wait()
            finally:
                ckpt._finalizer()

    return run_job(len(stores), process)


def check(store: Store, steps: list[int]) -> None:
    """These steps are there, each as it was saved, and nothing else."""
    assert sorted(store.list_dir(RUN)) == sorted(str(s) for s in steps)
    with Checkpointer(RUN, options=OPTIONS, world=world_of(store), journal=False) as ckpt:
        assert ckpt.steps() == steps
        for step in steps:
            found, want = ckpt.restore(dict(state_of(step)), step=step), state_of(step)
            for name, value in want.items():
                np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("slow", [0, 1, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_one_slow_process_and_all_write_and_drop_the_same(slow: int, lazy: bool) -> None:
    inner = MemoryStore()
    stores: list[Any] = [HeldStore(inner) for _ in range(4)]
    stores[slow].hold()

    def work(ckpt: Checkpointer, index: int) -> Any:
        for step in range(1, 7):
            ckpt.save(step, state_of(step), lazy=lazy)
            ckpt.wait_staged()
            if index == slow and step == 1:
                stores[slow].wait_until_held(1)
        if index == slow:
            stores[slow].let()
        ckpt.wait()
        return ckpt.dropped, ckpt.steps()

    assert run(stores, work, keep_last=1) == [(4, [6])] * 4
    assert stores[0].named == [1, 6]
    check(inner, [6])


def test_steps_that_must_be_kept_are_written_by_all() -> None:
    inner = MemoryStore()
    stores: list[Any] = [HeldStore(inner) for _ in range(4)]
    stores[2].hold()
    keep = policy.KeepLast(1) | policy.KeepEverySteps(3)

    def work(ckpt: Checkpointer, index: int) -> Any:
        for step in range(1, 6):
            if index == 2 and step == 4:  # 1 is being written, 3 must be kept: no room
                stores[2].let()
            ckpt.save(step, state_of(step), force=step == 4)
        ckpt.wait()
        return ckpt.dropped, ckpt.steps()

    ended = run(stores, work, keep_policy=keep)
    assert all(e == ended[0] for e in ended), ended
    dropped, steps = ended[0]
    assert {3, 5} <= set(steps)
    assert 4 in stores[0].named
    assert dropped + len(stores[0].named) == 5
    check(inner, steps)


class FailingStore(HeldStore):
    """Writes of one step fail."""

    bad = -1

    def do(self, kind: str, path: str, call: Callable[[], Any], skipped: Any = None) -> Any:
        if kind == "write" and f"-tmp-{self.bad}-" in path:
            raise StorageError("write", path, OSError(errno.EIO, "bad disk"))
        return super().do(kind, path, call, skipped)


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("where", ["copying", "writing"])
def test_one_process_fails_and_all_hear_of_it_at_the_same_call(bad: int, where: str) -> None:
    """The snapshot that waits is written all the same."""
    inner = MemoryStore()
    stores: list[Any] = [FailingStore(inner) for _ in range(4)]
    if where == "writing":
        stores[bad].bad = 2

    def failing(ckpt: Checkpointer) -> None:
        acquire = ckpt._pool.acquire

        def fail(*_: Any) -> Any:
            ckpt._pool.acquire = acquire  # pyright: ignore[reportAttributeAccessIssue]
            raise StorageError("allocate", "host memory", OSError(errno.ENOMEM, "none"))

        ckpt._pool.acquire = fail  # pyright: ignore[reportAttributeAccessIssue]

    def work(ckpt: Checkpointer, index: int) -> Any:
        heard: list[Any] = []
        for step in range(1, 6):
            if index == bad and step == 2 and where == "copying":
                failing(ckpt)
            try:
                ckpt.save(step, state_of(step))
            except JaxckptError as error:
                heard.append((step, type(error)))
        try:
            ckpt.wait()
        except JaxckptError as error:
            heard.append(("wait", type(error)))
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        return heard

    ended = run(stores, work)
    for index, heard in enumerate(ended):
        assert isinstance(heard, list), ended
        assert [call for call, _ in heard] == [call for call, _ in ended[0]], ended
        assert [kind for _, kind in heard] == [StorageError if index == bad else PeerFailedError]
    check(inner, [1, 3, 4, 5])


@pytest.mark.parametrize("process", [0, 2])
def test_a_process_dies_while_two_are_in_flight(process: int) -> None:
    first_ended = [0] * 4
    stores: list[Any] = []

    def work(ckpt: Checkpointer, index: int) -> Any:
        ckpt.save(1, state_of(1))
        ckpt.wait()
        first_ended[index] = len(stores[index].calls)
        ckpt.save(2, state_of(2))
        ckpt.save(3, state_of(3))
        ckpt.wait()

    inner = MemoryStore()
    stores = [FaultyStore(inner) for _ in range(4)]
    run(stores, work)
    first, calls = first_ended[process], len(stores[process].calls)
    for k in (first + (calls - first) // 3, calls - 3):  # each costs what a death is waited for
        inner = MemoryStore()
        stores = [FaultyStore(inner) for _ in range(4)]
        stores[process] = FaultyStore(inner, fail_at=k)

        def dead(index: int, store: Any = stores[process], k: int = k) -> None:
            if index == process and len(store.calls) >= k:
                raise KilledError("dead")

        run(stores, work, dead, hurry=1e-3)  # who is missed is missed soon
        left = inner.kill()
        with Checkpointer(RUN, options=OPTIONS, world=world_of(left), journal=False) as ckpt:
            steps = ckpt.steps()
            assert steps[0] == 1
        check(left, steps)


class WhenFree:
    """Somebody else's policy: asks what only one process knows."""

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        return step.step % 2 == 0 and not context.is_saving_in_progress


@pytest.mark.parametrize("when", [policy.EverySecs(7.0), WhenFree()])
def test_processes_with_clocks_of_their_own_save_the_same_steps(when: Any) -> None:
    inner = MemoryStore()

    times, rates = [0] * 4, (1.0, 3.0, 0.3, 100.0)  # seconds that a step seems to take

    def clock(index: int) -> Callable[[], int]:
        return lambda: times[index]

    def work(ckpt: Checkpointer, index: int) -> Any:
        saved: list[int] = []
        for step in range(1, 60):
            times[index] += int(rates[index] * 1e9)
            if ckpt.save(step, {"k": step}):
                saved.append(step)
                ckpt.wait()
        return saved

    clocks = [clock(index) for index in range(4)]
    ended = run([inner] * 4, work, clocks=clocks, keep_last=1, save_policy=when)
    assert all(e == ended[0] for e in ended), ended
    assert 1 < len(ended[0]) < 59


def test_an_older_step_that_can_not_be_removed_is_told_to_all_at_the_same_call() -> None:
    class Stuck(FaultyStore):
        def rename(self, source: str, target: str) -> None:
            if "-trash-" in target:
                raise StorageError("rename", source, OSError(errno.EACCES, "no"))
            super().rename(source, target)

    store = Stuck(MemoryStore())

    def work(ckpt: Checkpointer, index: int) -> list[type]:
        raised: list[type] = []
        for step in (1, 2):
            ckpt.save(step, state_of(step))
            try:
                ckpt.wait()
            except JaxckptError as error:
                raised.append(type(error))
        return raised

    found = run([store, store], work, keep_policy=policy.KeepLast(1))
    assert found == [[StorageError], [PeerFailedError]]


def test_a_process_that_gives_up_does_not_wait_for_the_primary_first() -> None:
    """Its thread waits for its turn; an hour would be over when the grace period is long gone."""
    places = coordinators(2, 4, MemoryKeys(UNHURRIED))
    operations = [place.operation("save") for place in places]
    waiting, ended = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            operations[1].meet("its turn", timeout_secs=3600.0)
        except PreemptedError:
            ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(10)
    operations[1].fail(PreemptedError(1))
    assert ended.wait(10)
