"""Medians of the last few measurements, and what can be measured from the questions of a loop."""

from __future__ import annotations

import datetime as dt
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from jaxckpt.policy.checks import check_count, check_not_negative
from jaxckpt.policy.facts import CheckpointInfo, Measurements, secs_between

WINDOW = 8


class Meter:
    """Keeps the last few measurements of each kind. Not for several threads at once.

    Args:
        devices: of the job.
        restarts: how often the job came back after a failure, before and in this process.
        observed_secs: the time of earlier processes over which they were counted. Steps, stalls
            and restores that are told are added.
        window: how many of each kind are kept.

    Raises:
        InvalidOptionsError: an argument is negative, or no device or no window.
    """

    def __init__(
        self,
        *,
        devices: int = 1,
        restarts: int = 0,
        observed_secs: float = 0.0,
        window: int = WINDOW,
    ) -> None:
        check_count("devices", devices)
        check_count("window", window)
        check_not_negative("restarts", restarts, "a number of failures")
        check_not_negative("observed_secs", observed_secs, "seconds")
        self._devices, self._restarts, self._observed = devices, restarts, observed_secs
        self._steps: deque[float] = deque(maxlen=window)
        self._stalls: deque[float] = deque(maxlen=window)
        self._writes: deque[float] = deque(maxlen=window)
        self._restores: deque[float] = deque(maxlen=window)

    def step(self, secs: float, count: int = 1) -> None:
        """Each of the last ``count`` steps took ``secs`` seconds, without saves."""
        self._steps.append(max(0.0, secs))
        self._observed += max(0.0, secs) * count

    def saved(self, stall_secs: float) -> None:
        """A save stopped training for so long."""
        self._stalls.append(max(0.0, stall_secs))
        self._observed += max(0.0, stall_secs)

    def durable(self, secs: float) -> None:
        """A save is durable, so many seconds after its call."""
        self._writes.append(max(0.0, secs))

    def restored(self, secs: float) -> None:
        """Training goes on, so many seconds after this process began."""
        self._restores.append(max(0.0, secs))
        self._observed += max(0.0, secs)

    def measured(self) -> Measurements:
        """The medians so far."""
        return Measurements(
            stall_secs=_median(self._stalls),
            write_secs=_median(self._writes),
            restore_secs=_median(self._restores),
            step_secs=_median(self._steps),
            restarts=self._restarts,
            observed_secs=self._observed,
            devices=self._devices,
        )


class QuestionMeter:
    """Measures a loop by nothing but the times at which it asks whether to save.

    For loops that measure nothing, as orbax's. The time between two questions is that of the steps
    between them, and of the stall where the first of them was followed by a save. A save counts as
    durable at the first question at which none is in progress.
    """

    def __init__(self, devices: int) -> None:
        self._meter = Meter(devices=devices)
        self._last: CheckpointInfo | None = None
        self._writing_since: dt.datetime | None = None
        self.started: dt.datetime | None = None

    def asked(
        self, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo], context: Any
    ) -> Measurements:
        """Takes a question into account; one that is asked twice counts once."""
        if self.started is None:
            self.started = step.time
        last, self._last = self._last, step
        if last is not None and step.step > last.step:
            self._between(last, step, previous_steps)
        elif last is not None and step.step == last.step:
            self._last = last
        if self._writing_since is not None and not context.is_saving_in_progress:
            self._meter.durable(secs_between(self._writing_since, step.time))
            self._writing_since = None
        return self._meter.measured()

    def _between(
        self, last: CheckpointInfo, step: CheckpointInfo, previous_steps: Sequence[CheckpointInfo]
    ) -> None:
        secs, count = secs_between(last.time, step.time), step.step - last.step
        saved = previous_steps[-1] if len(previous_steps) else None
        if saved is None or saved.step < last.step or secs_between(last.time, saved.time) < 0:
            self._meter.step(secs / count, count)
            return
        self._writing_since = last.time
        one = self._meter.measured().step_secs
        if one is not None:
            self._meter.saved(secs - one * count)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
