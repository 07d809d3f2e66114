"""The Recorder: what it writes, what survives, and that it never disturbs."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import random
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import jaxckpt
from jaxckpt.errors import JournalWarning
from jaxckpt.ettr.records import MAX_JOURNAL_BYTES, Record, parse_journal
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.store import Store, read_file
from jaxckpt.io.world import World, local_world
from jaxckpt.recording import Recorder
from jaxckpt.testing.faulty_store import FaultyStore
from jaxckpt.testing.memory_store import MemoryStore

PATH = "/run/journal.jsonl"


class Clock:
    """Nanoseconds that pass when told."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.ns

    def tick(self, secs: float) -> None:
        self.ns += round(secs * 1e9)


def run_store() -> MemoryStore:
    store = MemoryStore()
    store.make_dir("/run")
    store.sync_dir("/")
    return store


def recorder_of(store: Store, clock: Clock, wall: float = 1000.0) -> Recorder:
    world = World(store, Coordinator(), lambda: round(wall * 1e9), clock)
    return Recorder(world, "/run")


def read(store: Store, path: str = PATH) -> list[Record]:
    journal = parse_journal(read_file(store, path, MAX_JOURNAL_BYTES))
    assert journal.skipped == 0
    return list(journal.records)


def brief(records: list[Record], *kinds: str) -> list[Any]:
    wanted = [r for r in records if not kinds or r.kind in kinds]
    return [(r.kind, round(r.t, 6), dict(r.facts)) for r in wanted]


def test_a_session_from_its_start_to_its_end() -> None:
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=2, devices=8)
    recorder.begins(0)
    clock.tick(3.0)
    recorder.step(1)
    for step in (2, 3):
        clock.tick(0.125)
        recorder.step(step)
    recorder.begin_call()
    began = recorder.now()
    clock.tick(0.5)
    recorder.note(
        "save", at=began, step=3, stall=0.5, waited=0.25, bytes=100, why="policy", lazy=False
    )
    recorder.end_call()
    clock.tick(0.25)
    recorder.note("durable", step=3, secs=0.75, write_secs=0.5, bytes=100)
    clock.tick(0.25)
    recorder.step(4)
    recorder.close()
    records = read(store)
    assert [r.kind for r in records] == [
        "start",
        "steps",
        "steps",
        "save",
        "durable",
        "steps",
        "end",
    ]
    assert records[0].facts["wall"] == 1000.0
    assert records[0].facts["processes"] == 2
    assert brief(records, "steps") == [
        ("steps", 3.0, {"first": 0, "last": 1, "secs": 3.0}),
        ("steps", 3.25, {"first": 1, "last": 3, "secs": 0.25}),
        ("steps", 4.25, {"first": 3, "last": 4, "secs": 0.5}),
    ]
    assert brief(records, "save")[0][1] == 3.25
    assert len({r.session for r in records}) == 1
    recorder.step(5)
    recorder.note("end")
    recorder.close()
    assert len(read(store)) == len(records)


def test_time_inside_calls_is_no_training_even_nested() -> None:
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    recorder.step(10)
    clock.tick(0.25)
    recorder.begin_call()
    clock.tick(5)
    recorder.begin_call()
    clock.tick(5)
    recorder.end_call()
    clock.tick(5)
    recorder.end_call()
    clock.tick(0.5)
    recorder.begin_call()
    recorder.step(11)
    clock.tick(7)
    recorder.end_call()
    clock.tick(0.125)
    recorder.step(12)
    recorder.flush()
    facts = [r.facts for r in read(store) if r.kind == "steps"]
    assert [(f["first"], f["last"], f["secs"]) for f in facts] == [(10, 11, 0.75), (11, 12, 0.125)]


@pytest.mark.parametrize(
    ("done", "restored", "then", "expected"),
    [
        (None, 100, 101, (100, 101, 2.0)),  # the beginning of a session
        (None, None, 101, None),  # nobody knows from where
        (500, 100, 101, (100, 101, 2.0)),  # back to an older step
        (500, 100, 501, (500, 501, 3.0)),  # one was only looked at
        (500, 500, 501, (500, 501, 3.0)),  # the same bytes again, and on
        (500, None, 500, None),  # no progress
        (500, None, 400, None),
    ],
)
def test_where_steps_begin(
    done: int | None, restored: int | None, then: int, expected: tuple[int, int, float] | None
) -> None:
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    if done is not None:
        recorder.begins(done - 1)
        recorder.step(done)
    before = len(read(store))
    clock.tick(1.0)
    if restored is not None:
        recorder.begin_call()
        clock.tick(9.0)
        recorder.note("restore", at=1.0, step=restored, secs=9.0, bytes=10)
        recorder.end_call()
    clock.tick(2.0)
    recorder.step(then)
    recorder.flush()
    facts = [r.facts for r in read(store)[before:] if r.kind == "steps"]
    got = [(f["first"], f["last"], f["secs"]) for f in facts]
    assert got == ([expected] if expected else [])


def test_a_kill_hides_at_most_a_second_of_steps() -> None:
    chance = random.Random(3)
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    recorder.begins(0)
    appended = 0
    for step in range(1, 20_000):
        clock.tick(chance.choice([0.001, 0.01, 0.05]))
        recorder.step(step)
        size = len(read_file(store, PATH, MAX_JOURNAL_BYTES))
        appended, grown = size, size != appended
        if grown:
            newest = read(store.kill())[-1] if step % 50 == 0 else None
            assert newest is None or newest.facts["last"] == step
            seen = recorder.now()
        assert recorder.now() - seen <= min(1.0, max(0.05, 0.1 * recorder.now())) + 0.05
    seconds = recorder.now()
    assert len(read(store)) < 200 + seconds


def test_the_next_session_goes_on_behind_a_torn_line() -> None:
    store, clock = run_store(), Clock()
    first = recorder_of(store, clock)
    first.start(processes=1, devices=1)
    store.append(PATH, b'{"t":1.0,"e":"sa')
    second = recorder_of(store.kill(), clock)
    second.start(processes=1, devices=1)
    journal = parse_journal(read_file(second._store, PATH, MAX_JOURNAL_BYTES))
    assert [r.kind for r in journal.records] == ["start", "start"]
    assert journal.skipped == 1


def test_what_was_durable_survives_loss_of_power() -> None:
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    recorder.note("durable", step=3, secs=1.0, write_secs=1.0, bytes=1)
    recorder.note("dropped", step=2, newer=3)
    assert [r.kind for r in read(store.crash())] == ["start", "durable"]
    for seed in range(50):
        journal = parse_journal(
            read_file(store.crash(random.Random(seed)), PATH, MAX_JOURNAL_BYTES)
        )
        assert [r.kind for r in journal.records][:2] == ["start", "durable"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 5])
def test_a_journal_that_can_not_be_written_disturbs_nothing(number: int, fail_at: int) -> None:
    store = FaultyStore(run_store(), fail_at=fail_at, error=number, sticky=True)
    clock = Clock()
    recorder = recorder_of(store, clock)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        recorder.start(processes=1, devices=1)
        for step in range(10):
            clock.tick(2)
            recorder.step(step)
            recorder.note("save", step=step, stall=0.0)
            recorder.note("durable", step=step)
        recorder.flush()
        recorder.close()
    assert [w.category for w in seen] == [JournalWarning]
    text = str(seen[0].message)
    assert text.startswith("the journal /run/journal.jsonl is not written any further: ")
    assert errno.errorcode[number] in text
    assert text.endswith("Training and saves go on; jaxckpt.report shows the run up to here.")
    assert not recorder.recording
    assert len(store.calls) == fail_at


def test_a_warning_that_is_made_an_error_does_not_disturb_either() -> None:
    recorder = recorder_of(FaultyStore(run_store(), fail_at=1, error=errno.EIO), Clock())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.start(processes=1, devices=1)
    assert not recorder.recording


def test_only_the_primary_writes_and_only_when_asked() -> None:
    store = run_store()
    other = dataclasses.replace(World(store, Coordinator()))
    off = Recorder(other, "/run", enabled=False)
    off.start(processes=1, devices=1)
    off.begin_call()
    off.step(1)
    off.note("save", step=1, stall=0.0)
    off.end_call()
    off.flush()
    off.close()
    assert store.list_dir("/run") == []


def test_a_full_journal_is_given_up_below_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxckpt.recording.MAX_JOURNAL_BYTES", 20_000)
    monkeypatch.setattr("jaxckpt.recording._THINNING", ((8000, 600 * 10**9), (4000, 10**10)))
    store, clock = run_store(), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    for step in range(15_000):
        clock.tick(0.5)
        recorder.step(step)
    with pytest.warns(JournalWarning, match=r"limit of 20000 bytes\."):
        note_many(recorder)
    records = read(store)
    assert records[-1].kind == "full"
    assert len(read_file(store, PATH, MAX_JOURNAL_BYTES)) <= 20_000
    gaps = [b.t - a.t for a, b in itertools.pairwise(records) if b.kind == "steps"]
    assert {1.0, 10.0, 600.0} <= set(gaps)


def note_many(recorder: Recorder) -> None:
    for step in range(1000):
        recorder.note("dropped", step=step)


def test_many_threads_write_whole_lines_and_lose_none(tmp_path: Path) -> None:
    world = World(LocalStore(), Coordinator())
    recorder = Recorder(world, str(tmp_path))
    recorder.start(processes=1, devices=1)

    def work(thread: int) -> None:
        for i in range(200):
            recorder.note("dropped", step=1000 * thread + i, newer=7)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for step in range(1, 2000):
        recorder.step(step)
    for thread in threads:
        thread.join()
    recorder.close()
    records = read(LocalStore(), str(tmp_path / "journal.jsonl"))
    dropped = [r.facts["step"] for r in records if r.kind == "dropped"]
    assert sorted(dropped) == [1000 * n + i for n in range(8) for i in range(200)]
    steps = [r.facts for r in records if r.kind == "steps"]
    assert [f["first"] for f in steps] == [1, *(f["last"] for f in steps[:-1])]
    assert steps[-1]["last"] == 1999


def test_a_step_costs_one_reading_of_the_clock_and_no_call_of_the_store() -> None:
    store, clock = FaultyStore(run_store()), Clock()
    recorder = recorder_of(store, clock)
    recorder.start(processes=1, devices=1)
    recorder.begins(0)
    clock.tick(100)
    recorder.step(1)
    calls, clock.readings = len(store.calls), 0
    for step in range(2, 102):
        clock.tick(0.005)
        recorder.step(step)
    assert clock.readings == 100
    assert len(store.calls) == calls


def test_a_killed_process_leaves_what_it_did(tmp_path: Path) -> None:
    """Real files, a real SIGKILL in the middle of training, and the next session behind it."""
    code = (
        "import os, signal, sys\n"
        "from jaxckpt.io.coordinator import Coordinator\n"
        "from jaxckpt.io.world import local_world\n"
        "from jaxckpt.recording import Recorder\n"
        "recorder = Recorder(local_world(Coordinator()), sys.argv[1])\n"
        "recorder.start(processes=1, devices=1)\n"
        "recorder.begins(0)\n"
        "for step in range(1, 100_000):\n"
        "    recorder.step(step)\n"
        "    if step == 70_000:\n"
        "        recorder.note('durable', step=70_000)\n"
        "    if step == 90_000:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    with (tmp_path / "journal.jsonl").open("ab") as torn:
        torn.write(b'{"t":9.5,"e":"ste')
    recorder = Recorder(local_world(Coordinator()), str(tmp_path))
    recorder.start(processes=1, devices=1)
    recorder.begins(70_000)
    recorder.step(95_000)
    recorder.close()
    report = jaxckpt.report(tmp_path)
    assert (report.sessions, report.failures, report.skipped_lines) == (2, 1, 1)
    assert report.steps == 95_000
    assert report.lost_steps <= 20_000
    assert report.restarts[0].step == 70_000
