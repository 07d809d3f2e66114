"""When to save: policies that follow from step numbers, the time, and the end of the job.

Each is an immutable value; ``|`` combines them with one another and with orbax's own.

Policies that look at the time may answer differently in different processes of a job.
`Checkpointer` asks the primary and hands its answer on; orbax's ``CheckpointManager`` asks in every
process, so in a job of several processes give it policies that are ``by_step_alone``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.checks import check_count, check_policy, check_positive, checked_steps
from jaxckpt.policy.facts import CheckpointInfo, SavePolicy, began_at, secs_between

FAR = 1 << 62
"""A step that no job reaches."""
_LOOK_AGAIN = 0.9
"""The share of the remaining time after which to look again: few looks, each closer."""


class CombinableSave:
    """Gives ``|`` to a save policy; the other side may be anybody's."""

    def __or__(self, other: SavePolicy) -> AnySave:
        return AnySave((self, other))  # pyright: ignore[reportArgumentType]

    def __ror__(self, other: SavePolicy) -> AnySave:
        return AnySave((other, self))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class EverySteps(CombinableSave):
    """Saves every step whose number is a multiple of ``n``.

    Raises:
        InvalidOptionsError: ``n`` is not a whole number of at least 1.
    """

    n: int

    def __post_init__(self) -> None:
        check_count("EverySteps.n", self.n)

    @property
    def by_step_alone(self) -> bool:
        return True

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        return step.step % self.n == 0

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        return (step.step // self.n + 1) * self.n


@dataclass(frozen=True)
class EverySecs(CombinableSave):
    """Saves when ``secs`` seconds have passed since the last save, or since the start of training.

    In orbax's ``CheckpointManager``, which does not say when training began, the first step that is
    asked about is saved where there are no earlier ones.

    Raises:
        InvalidOptionsError: ``secs`` is not a number above 0.
    """

    secs: float

    def __post_init__(self) -> None:
        check_positive("EverySecs.secs", self.secs, "seconds")

    @property
    def by_step_alone(self) -> bool:
        return False

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        since = began_at(previous_steps, getattr(context, "started", None))
        return since is None or secs_between(since, step.time) >= self.secs

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        since = began_at(previous_steps, getattr(context, "started", None))
        if since is None:
            return step.step + 1
        return look_after(step.step, self.secs - secs_between(since, step.time), step_secs)


def every_minutes(minutes: float) -> EverySecs:
    """`EverySecs` for those who think in minutes.

    Raises:
        InvalidOptionsError: ``minutes`` is not a number above 0.
    """
    check_positive("minutes", minutes, "minutes")
    return EverySecs(60.0 * minutes)


@dataclass(frozen=True)
class AtSteps(CombinableSave):
    """Saves the steps with these numbers.

    Raises:
        InvalidOptionsError: not a collection of whole numbers.
    """

    steps: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", checked_steps("AtSteps.steps", self.steps))

    @property
    def by_step_alone(self) -> bool:
        return True

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        return step.step in frozenset(self.steps)

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        return min((s for s in self.steps if s > step.step), default=FAR)


@dataclass(frozen=True)
class OnPreemption(CombinableSave):
    """Saves when the job was told that it will be ended."""

    @property
    def by_step_alone(self) -> bool:
        return False

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        return bool(context.reached_preemption)

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        return FAR  # who is told of a preemption asks at once, whatever the step


@dataclass(frozen=True)
class AnySave(CombinableSave):
    """Saves when any of these policies would; all are asked, since some learn from being asked.

    Raises:
        InvalidOptionsError: one of them has no ``should_save``.
    """

    policies: Iterable[SavePolicy]

    def __post_init__(self) -> None:
        flat: list[SavePolicy] = []
        if not isinstance(self.policies, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError("AnySave.policies", self.policies, "a list of policies")
        for policy in self.policies:
            check_policy("AnySave.policies", policy, "should_save")
            flat.extend(policy.policies if isinstance(policy, AnySave) else (policy,))
        object.__setattr__(self, "policies", tuple(flat))

    @property
    def by_step_alone(self) -> bool:
        return all(by_step_alone(policy) for policy in self.policies)

    def should_save(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], *, context: Any
    ) -> bool:
        answers = [p.should_save(step, previous_steps, context=context) for p in self.policies]
        return any(answers)

    def next_look(
        self,
        step: CheckpointInfo,
        previous_steps: Sequence[CheckpointInfo],
        *,
        context: Any,
        step_secs: float | None,
    ) -> int:
        looks = (
            next_look(policy, step, previous_steps, context=context, step_secs=step_secs)
            for policy in self.policies
        )
        return min(looks, default=FAR)


def by_step_alone(policy: SavePolicy) -> bool:
    """Whether the answers follow from step numbers alone, so that processes need not talk.

    A policy that does not say so, as orbax's, counts as one that looks at more.
    """
    return bool(getattr(policy, "by_step_alone", False))


def next_look(
    policy: SavePolicy,
    step: CheckpointInfo,
    previous_steps: Sequence[CheckpointInfo],
    *,
    context: Any,
    step_secs: float | None,
) -> int:
    """The next step at which it makes sense to ask a policy again; more than ``step.step``.

    Args:
        step_secs: mean seconds of a step; None while unknown.
    """
    ask = getattr(policy, "next_look", None)
    if ask is None:
        return step.step + 1
    return ask(step, previous_steps, context=context, step_secs=step_secs)


def look_after(step: int, remaining_secs: float, step_secs: float | None) -> int:
    """The step before ``remaining_secs`` are over, with room for steps that get slower."""
    if not step_secs or step_secs <= 0 or remaining_secs <= 0:
        return step + 1
    steps = min(math.floor(_LOOK_AGAIN * remaining_secs / step_secs), FAR - step)
    return step + max(1, steps)
