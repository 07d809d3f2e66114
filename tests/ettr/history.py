"""Simulated runs that know the truth: sessions with kills at random times, on a clock of their own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from jaxckpt.ettr.account import account
from jaxckpt.ettr.records import MAX_JOURNAL_BYTES, Journal, Record, parse_journal
from jaxckpt.ettr.report import RunReport
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.store import read_file
from jaxckpt.io.world import World
from jaxckpt.recording import Recorder
from jaxckpt.testing.memory_store import MemoryStore


class Killed(Exception):
    """The process dies here."""


@dataclass
class Truth:
    """What happened. ``work``: secs of each step that was made, newest last."""

    work: dict[int, float] = field(default_factory=dict)
    lost_secs: float = 0.0
    lost_steps: int = 0
    stall: float = 0.0
    restore: float = 0.0
    down: float = 0.0
    first_steps: float = 0.0
    kills: int = 0
    durable: int = 0

    def take_back(self, step: int) -> None:
        for number in [s for s in self.work if s > step]:
            self.lost_steps += 1
            self.lost_secs += self.work.pop(number)


class Run:
    """One simulated run; times in seconds from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 1e4
        self.deadline = float("inf")
        self.store = MemoryStore()
        self.store.make_dir("/run")
        self.truth = Truth()
        self.durable = 0
        self.step_secs = self.chance.choice([0.01, 0.3, 2.0])
        self.save_every = self.chance.randint(1, 40)

    def pass_time(self, secs: float) -> None:
        if self.now + secs > self.deadline:
            self.now = self.deadline
            raise Killed
        self.now += secs

    def session(self, steps: int, life_secs: float) -> bool:
        """Trains for some steps unless it dies before; says whether it ended by itself."""
        clock_error = self.chance.uniform(-5e4, 5e4)  # a monotonic clock begins anywhere
        world = World(
            self.store,
            Coordinator(),
            lambda: round(self.now * 1e9),
            lambda: round((self.now + clock_error + 1e5) * 1e9),
            self.chance.randbytes,
        )
        self.deadline = self.now + life_secs
        recorder = Recorder(world, "/run")
        try:
            recorder.start(processes=1, devices=1)
            self._train(recorder, steps)
            recorder.close()
        except Killed:
            self.truth.kills += 1
            self.store = self.store.kill()
            return False
        return True

    def _train(self, recorder: Recorder, steps: int) -> None:
        chance, truth = self.chance, self.truth
        self.pass_time(chance.uniform(0, 5))
        recorder.begin_call()
        began, secs = recorder.now(), chance.uniform(0.1, 3) if self.durable else 0.0
        self.pass_time(secs)
        if self.durable:
            recorder.note("restore", at=began, step=self.durable, secs=secs, bytes=1000)
            truth.restore += secs
        recorder.end_call()
        recorder.begins(self.durable)
        step = self.durable
        compiling = chance.uniform(0, 20)
        pending: list[tuple[float, int]] = []
        for i in range(steps):
            secs = self.step_secs * chance.uniform(0.95, 1.05)
            self.pass_time(secs + (0 if i else compiling))
            if i == 0:
                truth.take_back(self.durable)
                truth.first_steps += compiling
            step += 1
            truth.work[step] = secs
            recorder.step(step)
            while pending and pending[0][0] <= self.now:
                _, done = pending.pop(0)
                recorder.note("durable", step=done, secs=1.0, write_secs=0.5, bytes=1000)
                self.durable = done
                truth.durable += 1
            if step % self.save_every == 0:
                recorder.begin_call()
                began, stall = recorder.now(), chance.uniform(0, 0.2)
                self.pass_time(stall)
                recorder.note("save", at=began, step=step, stall=stall, waited=0.0, bytes=1000)
                recorder.end_call()
                truth.stall += stall
                pending.append((self.now + chance.uniform(0.1, 3), step))

    def rest(self, secs: float) -> None:
        self.truth.down += secs
        self.now += secs

    def records(self) -> tuple[Record, ...]:
        return self._journal().records

    def report(self) -> RunReport:
        return account(self._journal())

    def _journal(self) -> Journal:
        journal = parse_journal(read_file(self.store, "/run/journal.jsonl", MAX_JOURNAL_BYTES))
        assert journal.skipped == 0
        return journal


def random_run(seed: int) -> Run:
    """Up to five sessions; all but the last may be killed."""
    run = Run(seed)
    for _ in range(run.chance.randint(0, 4)):
        run.session(run.chance.randint(1, 300), run.chance.uniform(0, 120))
        run.rest(run.chance.uniform(0, 100))
    run.session(run.chance.randint(1, 200), float("inf"))
    return run
