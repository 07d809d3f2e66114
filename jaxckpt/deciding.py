"""Whether a step is saved: the policy's answer, the same on every process."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxckpt import policy
from jaxckpt.dist import default_coordinator
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.world import World
from jaxckpt.policy import Measurements, Meter, SaveContext, SavePolicy, StepInfo
from jaxckpt.retention import Retention, time_of


@dataclass(frozen=True, slots=True)
class Now:
    """What is known when a step is reached.

    Attributes:
        saving: some save is in flight.
        preempted: the job was told that it will be ended.
    """

    saving: bool
    preempted: bool


class Decider:
    """Asks a save policy.

    Where its answers follow from step numbers alone, every process asks by itself. Else the primary
    asks, and tells the others together with the step at which they meet again; between the two
    nobody saves and nobody talks.
    """

    def __init__(
        self, world: World, run: str, save: SavePolicy, retention: Retention, meter: Meter
    ) -> None:
        self._world, self._run, self._policy = world, run, save
        self._retention, self._meter = retention, meter
        self._started = self._time()
        self._alike = policy.by_step_alone(save)
        self._next_look = self._asked = 0

    def begins(self) -> None:
        """Training begins, or goes on from a step that was restored."""
        self._started, self._next_look = self._time(), 0

    def is_due(self, step: int, now: Now) -> bool:
        """Whether to save a step; every process must ask for the same steps."""
        info = StepInfo(step, self._time())
        if self._alike:
            context = self._context(now, None)
            return self._policy.should_save(info, (), context=context)
        if self._world.coordinator.process_count == 1:
            context = self._context(now, self._meter.measured())
            return self._policy.should_save(info, self._retention.saved(), context=context)
        last, self._asked = self._asked, step
        if last < step < self._next_look:
            return False
        return self._meet(info, now)  # also where the loop went back: the next look was for later

    def _meet(self, info: StepInfo, now: Now) -> bool:
        def decide(_: list[bytes]) -> bytes:
            measured = self._meter.measured()
            context, steps = self._context(now, measured), self._retention.saved()
            due = bool(self._policy.should_save(info, steps, context=context))
            look = policy.next_look(
                self._policy, info, steps, context=context, step_secs=measured.step_secs
            )
            # Of a save that begins now the policy knows nothing yet.
            return json.dumps([due, info.step + 1 if due else look]).encode()

        what = f"schedule of step {info.step} of {self._run}"
        with self._world.coordinator.operation(what) as operation:
            due, self._next_look = json.loads(operation.meet("due", decide=decide))
        return due

    def _context(self, now: Now, measured: Measurements | None) -> SaveContext:
        return SaveContext(
            is_saving_in_progress=now.saving,
            reached_preemption=now.preempted,
            started=self._started,
            measured=measured,
        )

    def _time(self) -> dt.datetime:
        return time_of(self._world.wall_ns())


class JobWide:
    """A save policy whose answer is the same on every process, for orbax's ``CheckpointManager``.

    Orbax asks each process by itself; a policy that looks at the time may answer differently there,
    and the job then hangs. This asks the primary and tells the others: a meeting, some
    milliseconds, at every step at which orbax asks. `Checkpointer` does so by itself, and seldom.

    Args:
        policy: ours or orbax's.
        coordinator: of the job; the running one by default.
    """

    def __init__(self, policy: SavePolicy, coordinator: Coordinator | None = None) -> None:
        self._policy = policy
        self._coordinator = coordinator or default_coordinator()

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: Any) -> bool:
        """The primary's answer; every process must ask for the same steps."""

        def decide(_: list[bytes]) -> bytes:
            due = self._policy.should_save(step, previous_steps, context=context)
            return b"1" if due else b""

        if policy.by_step_alone(self._policy):
            return bool(decide([]))
        with self._coordinator.operation(f"whether step {step.step} is due") as operation:
            return bool(operation.meet("due", decide=decide))
