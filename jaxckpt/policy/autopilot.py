"""Saves as often as loses least time, by what is measured while training runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.checks import check_count, check_share
from jaxckpt.policy.facts import CheckpointInfo, Measurements, began_at, secs_between
from jaxckpt.policy.failures import given_mtbf_secs, learned_mtbf_secs
from jaxckpt.policy.interval import STALL_BUDGET, Choice, choose
from jaxckpt.policy.meter import QuestionMeter
from jaxckpt.policy.saving import CombinableSave, look_after

FIRST_STEPS = 3
"""The first save comes after so many steps: until there was one, nobody knows what it costs."""
RETUNE = 0.1
"""The interval in force stays unless a better one differs by more: near it all are as good."""
LEAST_STALL_SECS = 1e-3
"""A shorter stall is noise of the clock; taken as it is, it would ask for a save at every step."""


class _InForce:
    """What an `Autopilot` remembers: the interval in force, and what it measures by itself."""

    def __init__(self, devices: int) -> None:
        self.choice: Choice | None = None
        self.seen: Measurements | None = None
        self.questions = QuestionMeter(devices)


@dataclass(frozen=True)
class Autopilot(CombinableSave):
    """Measures stalls, writes and steps, and saves at the interval that minimises lost time.

    The interval is that of `jaxckpt.policy.interval.choose`: the best for failures at random, saves
    never above the stall budget and never faster than they are written; none is asked for while one
    is on its way. Until a save was measured one is made after a few steps. The interval in force
    changes when the best one differs by more than a tenth, or when stalls outgrow the budget.

    In `Checkpointer` the measurements and restarts are those of the run. In orbax's
    ``CheckpointManager`` they come from the times of the questions, and restarts are not known:
    give the mean time between failures there. Use one object for one run; equal arguments make
    equal objects, whatever they have measured.

    Attributes:
        mtbf_hours: mean time between failures of the whole job, in hours.
        device_mtbf_hours: of one device, in its place. With neither, it is learned from the
            restarts, beginning with what Meta published for Llama 3.
        stall_budget: the largest share of the time for which saves may stop training. Where
            failures are frequent and stalls long the best interval may be shorter than this allows,
            and `choice` says so.
        devices: how many the job has; None takes what was measured, and 1 in orbax.

    Raises:
        InvalidOptionsError: a figure is out of its range, or both mean times are given.
    """

    mtbf_hours: float | None = None
    device_mtbf_hours: float | None = None
    stall_budget: float = STALL_BUDGET
    devices: int | None = None
    _mind: _InForce = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mtbf_hours is not None and self.device_mtbf_hours is not None:
            raise InvalidOptionsError(
                "device_mtbf_hours",
                self.device_mtbf_hours,
                "None beside mtbf_hours: the mean time of the job or of a device, not both",
            )
        if self.devices is not None:
            check_count("devices", self.devices)
        given_mtbf_secs(self.mtbf_hours, self.device_mtbf_hours, 1)
        check_share("stall_budget", self.stall_budget)
        object.__setattr__(self, "_mind", _InForce(self.devices or 1))

    @property
    def by_step_alone(self) -> bool:
        return False

    @property
    def choice(self) -> Choice | None:
        """The interval in force and why, a new object when it moves; None before any step."""
        return self._mind.choice

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        given: Measurements | None = getattr(context, "measured", None)
        measured = given or self._mind.questions.asked(step, previous_steps, context)
        if context.is_saving_in_progress:
            return False  # a snapshot that is taken when the writer is free is a newer one
        wait = self._wait_secs(step, previous_steps, context, measured)
        # At the step that is nearest to the time, not at the first one after it.
        return wait is not None and wait <= 0.5 * (measured.step_secs or 0.0)

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        measured: Measurements | None = getattr(context, "measured", None)
        if measured is None:
            return step.step + 1  # it measures by being asked
        wait = self._wait_secs(step, previous_steps, context, measured)
        return step.step + 1 if wait is None else look_after(step.step, wait, step_secs)

    def _wait_secs(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        context: Any,
        measured: Measurements,
    ) -> float | None:
        """Seconds from this step until the next save is due; None while steps are not measured."""
        choice = self._retuned(measured)
        if choice is None or measured.step_secs is None:
            return None
        # Times of steps in a `Checkpointer` are those of the call, in orbax those of the return.
        stall = (measured.stall_secs or 0.0) if context_measures(context) else 0.0
        began: dt.datetime | None = (
            getattr(context, "started", None) or self._mind.questions.started
        )
        since = began_at(previous_steps, began)
        if since is None:
            return 0.0
        elapsed = secs_between(since, step.time)
        if measured.stall_secs is None and since == began:
            return FIRST_STEPS * measured.step_secs - elapsed
        due = choice.interval_secs + stall
        if context.is_saving_in_progress:
            due = max(due, measured.write_secs or 0.0)
        return due - elapsed

    def _retuned(self, measured: Measurements) -> Choice | None:
        """The interval in force, after a look at what was measured."""
        if measured.step_secs is None or measured == self._mind.seen:
            return self._mind.choice
        self._mind.seen = measured
        known = measured.step_secs if measured.stall_secs is None else measured.stall_secs
        stall = max(known, LEAST_STALL_SECS)
        found = choose(
            stall_secs=stall,
            mtbf_secs=self._mtbf_secs(measured),
            write_secs=measured.write_secs or 0.0,
            restore_secs=measured.restore_secs or 0.0,
            step_secs=measured.step_secs,
            stall_budget=self.stall_budget,
        )
        old = self._mind.choice
        if (
            old is None
            or abs(found.interval_secs - old.interval_secs) > RETUNE * old.interval_secs
            or stall > self.stall_budget * (old.interval_secs + stall)
        ):
            self._mind.choice = found
        return self._mind.choice

    def _mtbf_secs(self, measured: Measurements) -> float:
        devices = self.devices or measured.devices
        given = given_mtbf_secs(self.mtbf_hours, self.device_mtbf_hours, devices)
        if given is not None:
            return given
        return learned_mtbf_secs(measured.restarts, measured.observed_secs, devices)


def context_measures(context: Any) -> bool:
    """Whether who asks also measures: our loop does, orbax's does not."""
    return getattr(context, "measured", None) is not None
