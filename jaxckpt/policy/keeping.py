"""What to keep: policies over the steps that are there, and the rule that nothing overrides.

Each policy is an immutable value that answers for every checkpoint; ``|`` keeps what any side
keeps. The rule is in `removable`: the newest step and the one that was just saved stay, whatever a
policy says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.checks import check_count, check_policy, check_positive, checked_steps
from jaxckpt.policy.facts import CheckpointInfo, KeepContext, KeepPolicy, secs_between


class CombinableKeep:
    """Gives ``|`` to a keep policy; the other side may be anybody's."""

    def __or__(self, other: KeepPolicy) -> AnyKeep:
        return AnyKeep((self, other))  # pyright: ignore[reportArgumentType]

    def __ror__(self, other: KeepPolicy) -> AnyKeep:
        return AnyKeep((other, self))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class KeepLast(CombinableKeep):
    """Keeps the ``n`` newest steps.

    Raises:
        InvalidOptionsError: ``n`` is not a whole number of at least 1.
    """

    n: int = 1

    def __post_init__(self) -> None:
        check_count("KeepLast.n", self.n)

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        first = len(checkpoints) - self.n
        return [i >= first for i in range(len(checkpoints))]

    def must_keep(self, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
        return False  # it counts steps that are there, and a newer one serves as well


@dataclass(frozen=True)
class KeepEverySteps(CombinableKeep):
    """Keeps the steps whose number is a multiple of ``n``.

    Raises:
        InvalidOptionsError: ``n`` is not a whole number of at least 1.
    """

    n: int

    def __post_init__(self) -> None:
        check_count("KeepEverySteps.n", self.n)

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        return [info.step % self.n == 0 for info in checkpoints]

    def must_keep(self, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
        return checkpoints[index].step % self.n == 0


@dataclass(frozen=True)
class KeepEverySecs(CombinableKeep):
    """Keeps the oldest step, then each that is ``secs`` seconds or more after the last one kept.

    Raises:
        InvalidOptionsError: ``secs`` is not a number above 0.
    """

    secs: float

    def __post_init__(self) -> None:
        check_positive("KeepEverySecs.secs", self.secs, "seconds")

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        answers: list[bool] = []
        last: CheckpointInfo | None = None
        for info in checkpoints:
            kept = last is None or secs_between(last.time, info.time) >= self.secs
            last = info if kept else last
            answers.append(kept)
        return answers


@dataclass(frozen=True)
class KeepBest(CombinableKeep):
    """Keeps the ``n`` steps with the best metric; of equal ones the newer.

    A step without the metric, or whose metric is NaN or no number, is never among the best, so this
    policy alone does not keep it. The newest step stays anyway (`removable`).

    Orbax's ``CheckpointManager`` stores metrics only where its options have a ``best_fn``; without
    one, steps of an earlier process have no metrics and go.

    Attributes:
        n: how many.
        metric: its name in the metrics of a step, or a function of those metrics that returns a
            number, or None where there is none.
        mode: ``"min"`` where less is better (a loss), ``"max"`` where more is.

    Raises:
        InvalidOptionsError: an argument is none of these.
    """

    n: int
    metric: str | Callable[[Any], Any]
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        check_count("KeepBest.n", self.n)
        if not isinstance(self.metric, str) and not callable(self.metric):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError(
                "KeepBest.metric", self.metric, "a name or a function of the metrics"
            )
        if self.mode not in ("min", "max"):
            raise InvalidOptionsError("KeepBest.mode", self.mode, "'min' or 'max'")

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        sign = 1.0 if self.mode == "max" else -1.0
        found = [(self._value(info), i) for i, info in enumerate(checkpoints)]
        ranked = sorted((sign * value, i) for value, i in found if value is not None)
        best = {i for _, i in ranked[-self.n :]}
        return [i in best for i in range(len(checkpoints))]

    def _value(self, info: CheckpointInfo) -> float | None:
        if info.metrics is None:
            return None
        try:
            found = (
                info.metrics[self.metric]
                if isinstance(self.metric, str)
                else self.metric(info.metrics)
            )
            value = float(found)
        except (KeyError, TypeError, ValueError):
            return None
        return None if math.isnan(value) else value


@dataclass(frozen=True)
class KeepSteps(CombinableKeep):
    """Keeps the steps with these numbers.

    Raises:
        InvalidOptionsError: not a collection of whole numbers.
    """

    steps: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", checked_steps("KeepSteps.steps", self.steps))

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        named = frozenset(self.steps)
        return [info.step in named for info in checkpoints]

    def must_keep(self, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
        return checkpoints[index].step in frozenset(self.steps)


@dataclass(frozen=True)
class KeepAll(CombinableKeep):
    """Keeps every step."""

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        return [True] * len(checkpoints)

    def must_keep(self, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
        return True


@dataclass(frozen=True)
class AnyKeep(CombinableKeep):
    """Keeps what any of these policies keeps.

    Raises:
        InvalidOptionsError: one of them has no ``should_preserve``.
    """

    policies: Iterable[KeepPolicy]

    def __post_init__(self) -> None:
        flat: list[KeepPolicy] = []
        if not isinstance(self.policies, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError("AnyKeep.policies", self.policies, "a list of policies")
        for policy in self.policies:
            check_policy("AnyKeep.policies", policy, "should_preserve")
            flat.extend(policy.policies if isinstance(policy, AnyKeep) else (policy,))
        object.__setattr__(self, "policies", tuple(flat))

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        kept = [False] * len(checkpoints)
        for policy in self.policies:
            answers = _answers(policy, checkpoints, context)
            kept = [a or b for a, b in zip(kept, answers, strict=True)]
        return kept

    def must_keep(self, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
        return any(must_keep(policy, checkpoints, index) for policy in self.policies)


def must_keep(policy: KeepPolicy, checkpoints: Sequence[CheckpointInfo], index: int) -> bool:
    """Whether a step that waits to be written must be written though a newer one is durable.

    Policies by number answer for good. `KeepBest` and `KeepEverySecs` answer for the steps given.
    A foreign policy, which can not say, keeps what its ``should_preserve`` keeps.

    Args:
        checkpoints: the steps that are there or on their way, ascending; the one in question too.
        index: its place among them.

    Raises:
        InvalidOptionsError: a foreign policy did not answer once for each checkpoint.
    """
    ask = getattr(policy, "must_keep", None)
    if ask is not None:
        return bool(ask(checkpoints, index))
    return _answers(policy, checkpoints, KeepContext())[index]


def removable(
    policy: KeepPolicy, checkpoints: Iterable[CheckpointInfo], just_saved: int
) -> list[int]:
    """The steps that may go once ``just_saved`` is durable, oldest first.

    The newest step stays, whatever the policy says, and so does ``just_saved``: a loop that went
    back to an older step and saves on from there must not lose what it saves.

    Args:
        checkpoints: the whole steps that are listed; a damaged or unfinished one is none of them.

    Raises:
        InvalidOptionsError: a foreign policy did not answer once for each checkpoint.
    """
    ordered = sorted(checkpoints, key=lambda info: info.step)
    if not ordered:
        return []
    answers = _answers(policy, ordered, KeepContext())
    stay = {ordered[-1].step, just_saved}
    stay.update(info.step for info, kept in zip(ordered, answers, strict=True) if kept)
    return [info.step for info in ordered if info.step not in stay]


def _answers(policy: KeepPolicy, checkpoints: Sequence[CheckpointInfo], context: Any) -> list[bool]:
    answers = [bool(a) for a in policy.should_preserve(checkpoints, context=context)]
    if len(answers) != len(checkpoints):
        raise InvalidOptionsError(
            "keep",
            policy,
            f"a policy that answers once for each of {len(checkpoints)} checkpoints; "
            f"should_preserve returned {len(answers)} answers",
        )
    return answers
