"""The same answer on every process, whatever their clocks say."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from jaxckpt import Checkpointer, JobWide, Options, policy
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.world import World
from jaxckpt.policy import SaveContext, StepInfo
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.virtual_job import coordinators, run_job

OPTIONS = Options(memory_budget_bytes=16 << 20)


class Asked:
    """A foreign policy: saves every third time that it is asked, and notes for what."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: Any) -> bool:
        self.steps.append(step.step)
        return len(self.steps) % 3 == 0


def saved_by(save_policies: list[Any], clocks: list[Any], steps: int) -> list[list[int]]:
    places = coordinators(len(clocks), 2)
    store = MemoryStore()

    def work(index: int) -> list[int]:
        world = World(
            store, places[index], wall_ns=clocks[index], monotonic_ns=lambda: clocks[index]() // 1
        )
        saved: list[int] = []
        with Checkpointer(
            "/run", world=world, options=OPTIONS, save_policy=save_policies[index], grace_secs=None
        ) as ckpt:
            for step in range(1, steps + 1):
                if ckpt.save(step, {"a": 1}):
                    saved.append(step)
                    ckpt.wait()
            assert ckpt.steps() == saved
        return saved

    found = run_job(len(clocks), work)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found  # pyright: ignore[reportReturnType]


def ticking(secs: float) -> Any:
    """A clock that goes on by so much whenever it is looked at."""
    ticks = itertools.count(1_700_000_000_000_000_000, int(secs * 1e9))
    return lambda: next(ticks)


def test_a_policy_that_looks_at_time_is_asked_on_the_primary_alone() -> None:
    asked = [Asked() for _ in range(3)]
    clocks = [ticking(1), ticking(70), ticking(0.01)]
    saved = saved_by(asked, clocks, 12)
    assert saved == [[3, 6, 9, 12]] * 3
    assert [a.steps for a in asked] == [list(range(1, 13)), [], []]


def test_every_so_many_seconds_by_the_primarys_clock() -> None:
    policies = [policy.EverySecs(60) for _ in range(3)]
    saved = saved_by(policies, [ticking(1), ticking(100), ticking(0.01)], 40)
    assert saved[0] == saved[1] == saved[2]
    assert 0 < len(saved[0]) < 20


def test_step_numbers_need_no_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxckpt.io.coordinator import Operation

    met: list[str] = []
    meet = Operation.meet
    monkeypatch.setattr(
        Operation,
        "meet",
        lambda self, point, *a, **k: met.append(point) or meet(self, point, *a, **k),
    )
    saved = saved_by([policy.EverySteps(5)] * 3, [ticking(1)] * 3, 10)
    assert saved == [[5, 10]] * 3
    assert "due" not in met


def test_a_policy_for_orbax_answers_alike_on_every_process() -> None:
    places = coordinators(3, 2)
    asked = [Asked() for _ in range(3)]
    context = SaveContext()

    def work(index: int) -> list[bool]:
        job_wide = JobWide(asked[index], places[index])
        now = dt.datetime.now(dt.UTC) + dt.timedelta(days=index)
        return [job_wide.should_save(StepInfo(step, now), (), context=context) for step in range(6)]

    assert run_job(3, work) == [[False, False, True] * 2] * 3
    by_number = JobWide(policy.EverySteps(2), places[1])  # of one process: nobody is asked
    assert by_number.should_save(StepInfo(4, dt.datetime.now(dt.UTC)), (), context=context)


def test_a_job_that_goes_back_is_asked_again_before_the_next_look() -> None:
    """Between two looks nobody asks; a job that went back must not wait for the old one."""
    clock = [1_700_000_000_000_000_000]
    places, store = coordinators(2, 2), MemoryStore()
    together = threading.Barrier(2)

    def work(index: int) -> list[int]:
        world = World(store, places[index], wall_ns=lambda: clock[0], monotonic_ns=lambda: clock[0])
        saved: list[int] = []
        every = policy.EverySecs(100)
        with Checkpointer(
            "/run", world=world, options=OPTIONS, save_policy=every, grace_secs=None
        ) as ckpt:
            for step in [*range(1, 150), *range(20, 99)]:
                together.wait()
                if index == 0:
                    clock[0] += 1_000_000_000
                together.wait()
                if ckpt.save(step, {"a": 1}):
                    saved.append(step)
        return saved

    # Step 100 was saved; 49 steps later the loop goes back to 20, and 50 steps later it is due.
    assert run_job(2, work) == [[100, 70]] * 2


def test_steps_beyond_the_one_that_was_restored_are_no_last_save() -> None:
    clock = [1_700_000_000_000_000_000]
    world = World(
        MemoryStore(), Coordinator(), wall_ns=lambda: clock[0], monotonic_ns=lambda: clock[0]
    )
    saved: list[int] = []
    measured: list[Any] = []
    every = policy.EverySecs(100)
    with Checkpointer(
        "/run", world=world, options=OPTIONS, save_policy=every, grace_secs=None
    ) as ckpt:

        def train(steps: range) -> None:
            for step in steps:
                clock[0] += 1_000_000_000
                if ckpt.save(step, {"a": 1}):
                    saved.append(step)

        train(range(1, 501))
        ckpt.restore({"a": 0}, 100)
        train(range(151, 400))
        measured.append(ckpt._schedule._meter.measured().restore_secs)
    assert saved == [100, 200, 300, 400, 500, 250, 350]  # not every one up to 500
    assert measured == [0.0]  # the clock stood still: a return is not the life of the process
