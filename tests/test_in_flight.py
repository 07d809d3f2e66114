"""Whose turn it is and what is dropped, with threads and without files."""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxckpt.in_flight import InFlight, Snapshot
from jaxckpt.io.pool import HostPool

PATIENCE_SECS = 30.0


class Rig:
    """Plays the savers of a loop, and says what must happen by a model of its own.

    Every snapshot has a thread that waits for its turn and then for a command. After each command
    exactly the events that the model names must come, in any order.
    """

    def __init__(self, limit: int) -> None:
        self.pool = HostPool(16 << 20)
        self.in_flight = InFlight(limit, self.pool)
        self.limit = limit
        self.events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.commands: dict[int, queue.SimpleQueue[str]] = {}
        self.threads: list[threading.Thread] = []
        self.waiting: list[tuple[int, int, bool]] = []  # the model: number, blocks, kept
        self.writing: tuple[int, int, bool] | None = None
        self.count = 0
        self.dropped: list[int] = []
        self.passed: set[int] = set()
        self.written: list[int] = []

    # -- what runs ---------------------------------------------------------------------------------

    def _save(self, blocks: int, kept: bool) -> None:
        snapshot = self.in_flight.admit(
            self.count * 10, blocks, lambda: kept, lambda: None, decides=True
        )
        assert snapshot.number == self.count
        assert snapshot.whole == (blocks <= self.pool.blocks)
        self.commands[snapshot.number] = queue.SimpleQueue()
        self.events.put(("admitted", snapshot.number))
        assert self.commands[snapshot.number].get(timeout=PATIENCE_SECS) == "copied"
        self.in_flight.ready(snapshot)
        self.events.put(("ready", snapshot.number))
        self._run(self._write, snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        number, in_flight = snapshot.number, self.in_flight
        try:
            if not in_flight.wait_for_turn(snapshot, lambda: None):
                assert snapshot.newer is not None
                self.events.put(("dropped", number))
                return
            self.events.put(("turn", number))
            if self.commands[number].get(timeout=PATIENCE_SECS) == "write":
                in_flight.release(snapshot)
                in_flight.made_durable(snapshot)
        finally:
            in_flight.end(snapshot)
            self.events.put(("over", number))

    def _run(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _expect(self, *events: tuple[str, int]) -> None:
        got: list[tuple[str, int]] = []
        while len(got) < len(events):
            try:
                got.append(self.events.get(timeout=PATIENCE_SECS))
            except queue.Empty:
                raise AssertionError(f"waited for {events}, got only {got}") from None
        assert Counter(got) == Counter(events)

    # -- the model ---------------------------------------------------------------------------------

    def save(self, blocks: int, kept: bool) -> None:
        """Begins a save; where there is no room, the write under way ends well until there is."""
        self.count += 1
        new = (self.count, blocks, kept)
        self._run(self._save, blocks, kept)
        while not self._has_room(blocks):
            if self.limit > 1 and (old := next((s for s in self.waiting if not s[2]), None)):
                self.waiting.remove(old)
                self.dropped.append(old[0])
                self._expect(("dropped", old[0]), ("over", old[0]))
            else:
                self.end("write", also=("admitted", self.count) if self._fits(blocks) else None)
                if self._fitted:
                    break
        else:
            self._expect(("admitted", self.count))
        self.commands[self.count].put("copied")
        self.waiting.append(new)
        self._expect(("ready", self.count), *self._next_turn())

    _fitted = False

    def _fits(self, blocks: int) -> bool:
        """Whether there is room once the write under way has ended."""
        writing, self.writing = self.writing, None
        waiting, self.waiting = self.waiting, [s for s in self.waiting if s[2]]
        fits = self._has_room(blocks)
        self.writing, self.waiting, self._fitted = writing, waiting, fits
        return fits

    def _has_room(self, blocks: int) -> bool:
        held = len(self.waiting) + (self.writing is not None)
        together = sum(s[1] for s in self.waiting) + blocks
        return held == 0 or (held < self.limit and together <= self.pool.blocks)

    def _next_turn(self) -> list[tuple[str, int]]:
        if self.writing is not None or not self.waiting:
            return []
        passed = [s for s in self.waiting if s[0] in self.passed]
        self.writing = min(passed) if passed else max(self.waiting)
        self.waiting.remove(self.writing)
        return [("turn", self.writing[0])]

    def end(self, how: str, also: tuple[str, int] | None = None) -> None:
        """The write under way ends, well or not; then it is the newest one's turn."""
        if self.writing is None:
            return
        number = self.writing[0]
        gone = [s for s in self.waiting if how == "write" and s[0] < number and not s[2]]
        self.waiting = [s for s in self.waiting if s not in gone]
        self.dropped += [s[0] for s in gone]
        self.passed |= {s[0] for s in self.waiting if how == "write" and s[0] < number}
        self.written += [number] * (how == "write")
        self.writing = None
        self.commands[number].put(how)
        expected = [(what, s[0]) for s in gone for what in ("dropped", "over")]
        self._expect(("over", number), *expected, *self._next_turn(), *([also] if also else []))

    def close(self) -> None:
        while self.writing is not None:
            self.end("write")
        assert self.in_flight.count == 0
        for thread in self.threads:
            thread.join(PATIENCE_SECS)
            assert not thread.is_alive()


# Of the pool's blocks: a little, a half and more, all of it, more than there is.
SIZES = (0, 1, 10, 14, 23, 24, 25, 80)
STEP = st.one_of(
    st.tuples(st.just("save"), st.sampled_from(SIZES), st.booleans()),
    st.tuples(st.sampled_from(["write", "fail"])),
)


@pytest.mark.timeout(120)
@settings(max_examples=300)
@given(st.integers(1, 5), st.lists(STEP, max_size=40))
def test_random_histories_drop_and_write_what_the_rules_say(limit: int, history: list[Any]) -> None:
    rig = Rig(limit)
    assert rig.pool.blocks == 24
    for what, *args in history:
        if what == "save":
            rig.save(*args)
        else:
            rig.end(what)
    rig.close()
    if limit == 1:
        assert rig.dropped == []
    saved = sum(step[0] == "save" for step in history)
    failed = saved - len(rig.dropped) - len(rig.written)
    assert 0 <= failed <= sum(step[0] == "fail" for step in history)


@pytest.mark.timeout(30)
def test_the_newest_is_written_first() -> None:
    rig = Rig(4)
    for _ in range(4):
        rig.save(1, True)
    rig.close()
    assert rig.written == [1, 4, 2, 3]  # those that were passed over come next, oldest first
    assert rig.dropped == []


@pytest.mark.timeout(30)
def test_an_older_one_is_dropped_when_a_newer_one_is_durable_unless_it_must_be_kept() -> None:
    rig = Rig(4)
    for kept in (False, False, True, False):
        rig.save(1, kept)
    rig.close()
    assert rig.written == [1, 4, 3]
    assert rig.dropped == [2]


@pytest.mark.timeout(30)
def test_a_failed_write_drops_nothing() -> None:
    rig = Rig(3)
    for _ in range(3):
        rig.save(1, False)
    rig.end("fail")
    rig.end("fail")
    rig.close()
    assert rig.written == [2]
    assert rig.dropped == []


@pytest.mark.timeout(30)
def test_for_room_the_oldest_goes_and_no_more_than_needed() -> None:
    rig = Rig(5)
    for _ in range(4):  # the first is being written: it holds its blocks, the next take their own
        rig.save(7, False)
    rig.save(10, False)
    assert rig.dropped == [2]
    rig.save(14, False)
    assert rig.dropped == [2, 3, 4]
    rig.close()


@pytest.mark.timeout(30)
def test_what_is_larger_than_the_pool_is_alone() -> None:
    rig = Rig(3)
    for _ in range(3):
        rig.save(1, True)
    rig.save(200, True)
    assert rig.written == [1, 3, 2]
    rig.close()


@pytest.mark.timeout(30)
def test_who_does_not_decide_waits_and_drops_nothing() -> None:
    in_flight = InFlight(2, HostPool(16 << 20))
    first = in_flight.admit(1, 1, lambda: False, lambda: None, decides=False)
    second = in_flight.admit(2, 1, lambda: False, lambda: None, decides=False)
    for snapshot in (first, second):
        in_flight.ready(snapshot)
    admitted = threading.Event()

    def third() -> None:
        in_flight.admit(3, 1, lambda: False, lambda: None, decides=False)
        admitted.set()

    thread = threading.Thread(target=third, daemon=True)
    thread.start()
    assert not admitted.wait(0.2)
    assert first.newer is second.newer is None
    in_flight.take_turn(second)
    in_flight.release(second)
    assert admitted.wait(PATIENCE_SECS)
    thread.join()
    assert first.newer is None


@pytest.mark.timeout(30)
def test_an_error_while_waiting_for_the_turn_ends_the_wait() -> None:
    in_flight = InFlight(2, HostPool(16 << 20))
    first = in_flight.admit(1, 1, lambda: True, lambda: None, decides=True)
    second = in_flight.admit(2, 1, lambda: True, lambda: None, decides=True)
    for snapshot in (first, second):
        in_flight.ready(snapshot)
    assert in_flight.wait_for_turn(second, lambda: None)

    def look() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_flight.wait_for_turn(first, look)
    in_flight.end(first)
    in_flight.end(second)
    assert in_flight.count == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(8))
def test_free_running_threads_come_to_an_end_within_the_pool(seed: int) -> None:
    """Real blocks, taken by the loop and given back by the writers, nobody in step."""
    chance = random.Random(seed)
    pool = HostPool(16 << 20)
    in_flight = InFlight(chance.randint(1, 5), pool)
    threads: list[threading.Thread] = []
    outcomes: list[str] = []

    def write(snapshot: Snapshot, blocks: list[Any], fails: bool) -> None:
        try:
            turn = in_flight.wait_for_turn(snapshot, lambda: None)
            while blocks:
                pool.give_back(blocks.pop())
            outcomes.append("written" if turn and not fails else "not")
            if turn and not fails:
                in_flight.release(snapshot)
                in_flight.made_durable(snapshot)
        finally:
            in_flight.end(snapshot)

    def train() -> None:
        for step in range(200):
            count, kept = chance.randint(0, pool.blocks), chance.random() < 0.4
            snapshot = in_flight.admit(
                step, count, lambda kept=kept: kept, lambda: None, decides=True
            )
            assert snapshot.whole
            blocks = [pool.acquire() for _ in range(count)]
            in_flight.ready(snapshot)
            fails = chance.random() < 0.1
            thread = threading.Thread(target=write, args=(snapshot, blocks, fails), daemon=True)
            threads.append(thread)
            thread.start()

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    trainer.join(100)
    assert not trainer.is_alive()
    for thread in threads:
        thread.join(PATIENCE_SECS)
    assert len(outcomes) == 200
    assert in_flight.count == 0
    assert pool.peak_bytes <= pool.budget_bytes
    assert pool._held == len(pool._free) * pool.block_bytes


def test_what_must_be_kept_is_passed_over_once_only() -> None:
    in_flight = InFlight(8, HostPool(64 << 20))
    admit = in_flight.admit
    first = admit(1, 1, lambda: False, lambda: None, decides=True)
    in_flight.ready(first)
    assert in_flight.wait_for_turn(first, lambda: None)
    kept, droppable, newer = (
        admit(step, 1, lambda step=step: step == 2, lambda: None, decides=True)
        for step in (2, 3, 4)
    )
    for snapshot in (kept, droppable, newer):
        in_flight.ready(snapshot)
    in_flight.end(first)
    assert in_flight.wait_for_turn(newer, lambda: None)
    in_flight.made_durable(newer)
    assert not in_flight.wait_for_turn(droppable, lambda: None)
    latest = admit(5, 1, lambda: False, lambda: None, decides=True)
    in_flight.ready(latest)
    in_flight.end(newer)
    assert in_flight._next() is kept
    last = admit(6, 1, lambda: True, lambda: None, decides=True, urgent=True)
    in_flight.ready(last)
    assert in_flight._next() is last
