"""A job that trains, saves, fails and comes back, on a clock that is only counted.

A step takes the same time always, stalls and writes vary a little. One writer writes the newest
snapshot that waits; one that is overtaken is dropped. Failures strike at random moments, also while
the job comes back. After one a new process begins, with a policy of its own: all that it knows from
before is what a run's directory can hold, the steps that are durable and how often it came back.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxckpt import policy

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SPREAD = 0.2
"""Stalls and writes are up to this share shorter or longer."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job and its storage; all times in seconds.

    Attributes:
        stall: training stops for one save.
        write: from the call of a save until it is durable, when the writer is free.
        restore: reading the state back.
        restart: from the failure until the state can be read.
        step: one training step.
        mtbf: mean time between failures of the job.
        devices: how many devices it has.
    """

    name: str
    stall: float
    write: float
    restore: float
    restart: float
    step: float
    mtbf: float
    devices: int


@dataclass(frozen=True)
class Outcome:
    """What became of the time of one run.

    Attributes:
        ettr: the share that ended up in steps that were not lost.
        stalled: the share for which saves stopped training.
        saves: how many were called.
        failures: how many struck.
        interval: the seconds of training between saves that the policy had in force at the end,
            where it says so.
    """

    ettr: float
    stalled: float
    saves: int
    failures: int
    interval: float | None


MakePolicy = Callable[[], Any]


def simulate(scenario: Scenario, make: MakePolicy, secs: float, seed: int) -> Outcome:
    """Runs a job for ``secs`` seconds; the same seed has the same failures for every policy."""
    return _Run(scenario, make, secs, seed).outcome()


class _Writer:
    """One writer in the background, the newest first."""

    def __init__(self) -> None:
        self.durable_step, self.durable_called = 0, 0.0
        self._writing: tuple[float, int, float] | None = None
        self._waiting: tuple[float, int, float, float] | None = None

    def busy(self) -> bool:
        return self._writing is not None

    def forget(self) -> None:
        """What was not durable is gone with the process."""
        self._writing = self._waiting = None

    def take(self, called: float, step: int, ready: float, needs: float) -> None:
        if self._writing is None:
            self._writing = (ready + needs, step, called)
        else:
            self._waiting = (called, step, ready, needs)

    def until(self, now: float) -> Iterator[float]:
        """Goes on to a time; how long each save took that got durable by then."""
        while self._writing is not None and self._writing[0] <= now:
            done, self.durable_step, called = self._writing
            self.durable_called = called
            yield done - called
            self._writing, waiting = None, self._waiting
            if waiting is not None:
                self._waiting = None
                called, step, ready, needs = waiting
                self._writing = (max(done, ready) + needs, step, called)


class _Run:
    def __init__(self, scenario: Scenario, make: MakePolicy, secs: float, seed: int) -> None:
        self._scenario, self._make, self._secs = scenario, make, secs
        failures, self._noise = random.Random(seed), random.Random(seed + 1_000_000)
        self._strikes = [failures.expovariate(1 / scenario.mtbf)]
        while self._strikes[-1] < secs:
            self._strikes.append(self._strikes[-1] + failures.expovariate(1 / scenario.mtbf))
        self._writer = _Writer()
        self._stalled, self._saves = 0.0, 0
        self._policy: Any = None

    def outcome(self) -> Outcome:
        now, reached = 0.0, 0
        for restarts, strike in enumerate(self._strikes):
            reached = self._attempt(now, min(strike, self._secs), restarts)
            now = strike
        kept = reached * self._scenario.step  # nothing struck after the last attempt
        choice = getattr(self._policy, "choice", None)
        return Outcome(
            kept / self._secs,
            self._stalled / self._secs,
            self._saves,
            len(self._strikes) - 1,
            choice.interval_secs if choice else None,
        )

    def _attempt(self, began: float, end: float, restarts: int) -> int:
        """From the start of a process to its end; the step that it reached."""
        one = self._scenario
        self._policy = self._make()
        meter = policy.Meter(devices=one.devices, restarts=restarts, observed_secs=began)
        step, now = self._writer.durable_step, began
        if restarts:
            now += one.restart + one.restore
            meter.restored(now - began)
        if now >= end:
            return step
        started = _at(now)
        saved = [policy.StepInfo(step, _at(self._writer.durable_called))] if step else []
        info, context = policy.StepInfo(step, started), self._asking(started, meter)
        while True:
            known = context.measured and context.measured.step_secs
            following = policy.next_look(
                self._policy, info, saved, context=context, step_secs=known
            )
            arrives = now + (following - step) * one.step
            if arrives >= end:
                self._end(end)
                return step + int((end - now) / one.step)
            meter.step(one.step, following - step)
            step, now = following, arrives
            for took in self._writer.until(now):
                meter.durable(took)
            info, context = policy.StepInfo(step, _at(now)), self._asking(started, meter)
            if self._policy.should_save(info, saved, context=context):
                saved = [info]
                now = self._save(now, end, step, meter)
                if now >= end:
                    self._end(end)
                    return step
                info, context = policy.StepInfo(step, _at(now)), self._asking(started, meter)

    def _end(self, end: float) -> None:
        """The process dies: what is durable by then stays, the rest is gone."""
        for _ in self._writer.until(end):
            pass
        self._writer.forget()

    def _asking(self, started: dt.datetime, meter: policy.Meter) -> policy.SaveContext:
        alone = policy.by_step_alone(self._policy)  # it would not look: spare the medians
        return policy.SaveContext(
            is_saving_in_progress=self._writer.busy(),
            started=started,
            measured=None if alone else meter.measured(),
        )

    def _save(self, now: float, end: float, step: int, meter: policy.Meter) -> float:
        one = self._scenario
        stall = one.stall * self._noise.uniform(1 - SPREAD, 1 + SPREAD)
        needs = max(0.0, one.write - one.stall) * self._noise.uniform(1 - SPREAD, 1 + SPREAD)
        self._writer.take(now, step, now + stall, needs)
        self._saves += 1
        self._stalled += min(stall, end - now)
        meter.saved(stall)
        return now + stall


def _at(secs: float) -> dt.datetime:
    return START + dt.timedelta(seconds=secs)


@dataclass(frozen=True)
class AsOftenAsPossible:
    """Saves whenever no save is in progress, as orbax's policy for continuous saves does."""

    by_step_alone = False

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:  # noqa: ARG002
        return not context.is_saving_in_progress

    def next_look(
        self, step: Any, previous_steps: Any, *, context: Any, step_secs: float | None
    ) -> int:
        """At every step; before most of a write is over only to spare the simulation its time."""
        write = context.measured.write_secs
        if not (previous_steps and write and step_secs and context.is_saving_in_progress):
            return step.step + 1
        passed = (step.time - previous_steps[-1].time).total_seconds()
        return step.step + max(1, int(((1 - 2 * SPREAD) * write - passed) / step_secs))
