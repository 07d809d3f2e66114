"""What a policy is told, and what it must answer: the shape of orbax's policies.

An object with these attributes is enough, so orbax's policies work in `jaxckpt.Checkpointer` and
ours in `orbax.checkpoint.CheckpointManager`. Nothing here looks at a clock: times are arguments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class CheckpointInfo(Protocol):
    """A step as a policy sees it: ours or orbax's."""

    @property
    def step(self) -> int: ...

    @property
    def time(self) -> dt.datetime: ...

    @property
    def metrics(self) -> Any: ...


@dataclass(frozen=True)
class StepInfo:
    """A step that may be saved, or that was.

    Attributes:
        step: its number.
        time: when its save was called (for one that is not saved yet: now), with a time zone.
        metrics: what the caller gave with the save.
    """

    step: int
    time: dt.datetime
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured of a run so far; None where nothing was.

    Attributes:
        stall_secs: for how long training stops for one save.
        write_secs: from the call of a save until it is durable.
        restore_secs: from the start of a process until training goes on from a restored step.
        step_secs: seconds of one training step, without saves.
        restarts: how often the job came back after a failure.
        observed_secs: the time over which those restarts were counted.
        devices: how many devices the job has.
    """

    stall_secs: float | None = None
    write_secs: float | None = None
    restore_secs: float | None = None
    step_secs: float | None = None
    restarts: int = 0
    observed_secs: float = 0.0
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class SaveContext:
    """What else a save policy may look at.

    Attributes:
        is_saving_in_progress: a save is on its way in the background.
        reached_preemption: the job was told that it will be ended.
        started: when this process began to train, with a time zone.
        measured: None where nobody measures, as in orbax.
        multiprocessing_options: for orbax's own policies.
    """

    is_saving_in_progress: bool = False
    reached_preemption: bool = False
    started: dt.datetime | None = None
    measured: Measurements | None = None
    multiprocessing_options: Any = None


@dataclass(frozen=True, kw_only=True)
class KeepContext:
    """What else a keep policy may look at: nothing so far."""


class SavePolicy(Protocol):
    """Says whether a step is to be saved."""

    def should_save(
        self, step: Any, previous_steps: Sequence[Any], *, context: Any
    ) -> bool:  # Any: orbax's policies name orbax's own types here
        """Whether to save ``step``; ``previous_steps`` were saved before, oldest first."""
        ...


class KeepPolicy(Protocol):
    """Says which saved steps stay."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """One answer for each checkpoint; they ascend by step."""
        ...


def secs_between(earlier: dt.datetime, later: dt.datetime) -> float:
    """Seconds from one time to another; a time without a zone is taken as UTC.

    Orbax gives steps whose metadata it did not read the time ``datetime.min``, without a zone.
    """
    return (_aware(later) - _aware(earlier)).total_seconds()


def _aware(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time


def began_at(
    previous_steps: Sequence[CheckpointInfo], started: dt.datetime | None
) -> dt.datetime | None:
    """Since when work is at stake: the last save, or the start of this process if that is later.

    A save of an earlier process does not count: what came after it was lost and is not at stake.
    """
    last = previous_steps[-1].time if len(previous_steps) else None
    if last is None or started is None:
        return started if last is None else last
    return max(_aware(last), _aware(started))
