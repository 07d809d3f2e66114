"""The policies of a loop, and what is measured for them while it runs."""

from __future__ import annotations

import operator
from typing import Any

from jaxckpt import policy
from jaxckpt.deciding import Decider, Now
from jaxckpt.dist import device_count
from jaxckpt.errors import InvalidOptionsError, JaxckptError
from jaxckpt.format.names import MAX_STEP
from jaxckpt.io.world import World
from jaxckpt.policy import Choice, KeepPolicy, Meter, SavePolicy
from jaxckpt.reporting import report
from jaxckpt.retention import Retention
from jaxckpt.saves import Saves

_SECS = 1e-9


class Schedule:
    """When a loop saves and what it keeps; measures its steps, stalls and writes.

    Attributes:
        retention: what it keeps.
        devices: of the job.
    """

    def __init__(self, world: World, run: str, save: SavePolicy, keep: KeepPolicy) -> None:
        self.retention = Retention(world.store, run, keep)
        self.devices = device_count()
        self._clock_ns, self._policy = world.monotonic_ns, save
        self._meter = self._begun_meter(world, run)
        self._decider = Decider(world, run, save, self.retention, self._meter)
        self._opened_ns = self._left_ns = world.monotonic_ns()
        self._last: int | None = None
        self._restored, self._training, self._back_ns = False, False, self._opened_ns
        self._told: Choice | None = None

    def _begun_meter(self, world: World, run: str) -> Meter:
        """With the restarts that the journal knows of, where the policy may ask for them."""
        restarts, observed = 0, 0.0
        if not policy.by_step_alone(self._policy) and world.coordinator.is_primary:
            try:
                before = report(run, world=world)
                restarts, observed = before.failures, before.wall_secs
            except (JaxckptError, OSError):
                pass  # there is none yet
        return Meter(devices=self.devices, restarts=restarts, observed_secs=observed)

    def step(self, step: int, saves: Saves) -> None:
        """The loop has reached a step, in a call of `save`."""
        now = self._clock_ns()
        if self._restored:
            self._meter.restored((self._left_ns - self._back_ns) * _SECS)
            self._restored = False
        elif self._last is not None and step > self._last:
            count = step - self._last
            self._meter.step((now - self._left_ns) * _SECS / count, count)
        self._last, self._training = step, True
        while saves.durable_secs:
            self._meter.durable(saves.durable_secs.pop())

    def left(self) -> None:
        """The loop goes on."""
        self._left_ns = self._clock_ns()

    def saved(self, stall_secs: float) -> None:
        """A save has stopped the loop for so long."""
        self._meter.saved(stall_secs)

    def restored(self, secs: float) -> None:
        """A step was restored in so many seconds; the loop begins anew."""
        if self._training:  # it goes back; else the process has come back, from its start on
            self._back_ns = self._clock_ns() - round(secs / _SECS)
        self._restored, self._last = True, None
        self._decider.begins()

    def is_due(self, step: int, *, saving: bool, preempted: bool) -> bool:
        """What the policy says of a step; every process must ask for the same steps."""
        return self._decider.is_due(step, Now(saving, preempted))

    @property
    def choice(self) -> Choice | None:
        """The interval that a policy has chosen, where it does that."""
        return getattr(self._policy, "choice", None)

    def new_choice(self) -> Choice | None:
        """The same, once for each that is new."""
        choice = self.choice
        if choice is self._told:
            return None
        self._told = choice
        return choice


def chosen_save_policy(save_every: Any, save_policy: Any) -> SavePolicy:
    """The policy that the arguments of a `Checkpointer` mean.

    Raises:
        InvalidOptionsError: one can not be used, or both are given.
    """
    if save_policy is None:
        _check_count("save_every", 1 if save_every is None else save_every)
        return policy.EverySteps(1 if save_every is None else operator.index(save_every))
    if save_every is not None:
        raise InvalidOptionsError("save_every", save_every, "None beside save_policy")
    if not callable(getattr(save_policy, "should_save", None)):
        wanted = "a policy with should_save, as jaxckpt.policy and orbax have them"
        raise InvalidOptionsError("save_policy", save_policy, wanted)
    return save_policy


def chosen_keep_policy(keep_last: Any, keep_policy: Any) -> KeepPolicy:
    """The policy that the arguments of a `Checkpointer` mean.

    Raises:
        InvalidOptionsError: one can not be used, or both are given.
    """
    if keep_policy is None and keep_last is None:
        return policy.KeepAll()
    if keep_policy is None:
        _check_count("keep_last", keep_last)
        return policy.KeepLast(keep_last)
    if keep_last is not None:
        raise InvalidOptionsError("keep_last", keep_last, "None beside keep_policy")
    if not callable(getattr(keep_policy, "should_preserve", None)):
        wanted = "a policy with should_preserve, as jaxckpt.policy and orbax have them"
        raise InvalidOptionsError("keep_policy", keep_policy, wanted)
    return keep_policy


def checked_grace(grace_secs: Any) -> float | None:
    """Seconds more than 0, or None.

    Raises:
        InvalidOptionsError: it is neither.
    """
    if grace_secs is None:
        return None
    number = isinstance(grace_secs, int | float) and not isinstance(grace_secs, bool)
    if number and 0 < grace_secs <= 1e6:
        return float(grace_secs)
    raise InvalidOptionsError("grace_secs", grace_secs, "seconds, more than 0, or None")


def checked_step(step: object) -> int:
    """A step's number.

    Raises:
        InvalidOptionsError: it is none.
    """
    if not isinstance(step, bool):
        try:
            number = operator.index(step)  # pyright: ignore[reportArgumentType]
        except TypeError:
            number = -1
        if 0 <= number <= MAX_STEP:
            return number
    raise InvalidOptionsError("step", step, f"a whole number from 0 to {MAX_STEP}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionsError(name, value, "a whole number from 1 on")
