"""The door for a training loop: `Checkpointer`."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
import weakref
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self

from jaxckpt import policy
from jaxckpt._options import Options, checked_options
from jaxckpt.dist import default_coordinator
from jaxckpt.donating import Donations
from jaxckpt.errors import (
    ClosedError,
    PreemptedError,
    PreemptedWarning,
    StepExistsError,
)
from jaxckpt.ettr.report import RunReport
from jaxckpt.in_flight import InFlight
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join
from jaxckpt.io.world import World, local_world
from jaxckpt.items import checked_metrics
from jaxckpt.places import checked_path
from jaxckpt.policy import KeepPolicy, SavePolicy, StepInfo
from jaxckpt.preemption import Preemption
from jaxckpt.recording import Recorder
from jaxckpt.replanning import Planner
from jaxckpt.reporting import report
from jaxckpt.restoring import Leniency, tree_bytes
from jaxckpt.retention import time_of
from jaxckpt.run_reader import Restored, RunReader, open_run
from jaxckpt.saves import Saves
from jaxckpt.schedule import (
    Schedule,
    checked_grace,
    checked_step,
    chosen_keep_policy,
    chosen_save_policy,
)
from jaxckpt.step_save import StepRequest, StepSave, Tools

_log = logging.getLogger("jaxckpt")
_CLEANING_SECS = 2.0  # to remove what was begun, before the process is killed


class Checkpointer:
    """Saves and restores the steps of one run.

    A directory ``<run>/<step>`` for each step, as orbax's ``CheckpointManager`` makes them; it
    lists and restores them, and this class reads those that it made. A save returns once the
    state is copied out and is finished in the background; several may be in flight, see `save`.
    Call `close` at the end, or use it as a context manager. Not for several threads at once.

    In a job of several processes every process makes one on the same shared directory, which blocks
    until all have, and all call `save`, `restore` and `restore_or` in the same order. `steps`,
    `latest_step`, `restore_item`, `staged`, `wait`, `report` and `close` talk to nobody.

    A SIGTERM, or in a job the notice of jax's preemption service, makes the next `save` save, due
    or not, and wait until the step is durable; then `should_stop` is True. A loop that goes on all
    the same gets the signal's usual effect at its next `save`.

    Args:
        directory: of the run; made if it is not there.
        save_every: `save` does something at multiples of this step number only; 1 by default.
        keep_last: older whole steps are removed once a newer one is durable and read back; None
            keeps all.
        save_policy: when to save, in place of ``save_every``; see `jaxckpt.policy`. Orbax's
            policies work too.
        keep_policy: what to keep, in place of ``keep_last``.
        grace_secs: how long after the notice the process will be killed; None leaves signals
            alone.
        journal: keep a journal of the run's time in its directory, for `report`.
        options: see `Options`.
        world: the files, processes, clock and randomness to use; the real ones by default.

    Raises:
        InvalidOptionsError: an argument can not be used.
        NotACheckpointError: the directory is a file.
        StorageError: it can not be made or listed.
        NotSharedError, PeerFailedError, PeerMissingError: in a job of several processes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        save_every: int | None = None,
        keep_last: int | None = None,
        save_policy: SavePolicy | None = None,
        keep_policy: KeepPolicy | None = None,
        grace_secs: float | None = 30.0,
        journal: bool = True,
        options: Options | None = None,
        world: World | None = None,
    ) -> None:
        save_policy = chosen_save_policy(save_every, save_policy)
        keep_policy = chosen_keep_policy(keep_last, keep_policy)
        self._grace_secs = checked_grace(grace_secs)
        self.options = checked_options(options)
        self.directory = checked_path(directory)
        direct = self.options.direct_io == "on"
        self._world = world or local_world(default_coordinator(), require_direct=direct)
        open_run(self._world, self.directory)
        self._recorder = Recorder(self._world, self.directory, enabled=journal)
        self._schedule = Schedule(self._world, self.directory, save_policy, keep_policy)
        self._recorder.start(
            processes=self._world.coordinator.process_count, devices=self._schedule.devices
        )
        pool = HostPool(self.options.memory_budget_bytes, self._world.monotonic_ns)
        self._engine = Engine(self.options.writer_threads)
        self._saves = Saves(
            Tools(
                self._world,
                self.options,
                self._engine,
                pool,
                Planner(self.options, self._world.coordinator.processes),
                InFlight(self.options.in_flight, pool),
                self._schedule.retention,
                Donations(),
                self._recorder,
            )
        )
        self._pool = pool
        self._reader = RunReader(
            self._world,
            self.options,
            self._engine,
            self.directory,
        )
        self._preemption = Preemption(self._world, enabled=grace_secs is not None)
        self._stop = self._answered = False
        # Runs at the latest when the interpreter ends, after the saves in flight.
        self._finalizer = weakref.finalize(
            self, self._saves.shut_down, self.directory, self._engine
        )

    # -- what is there -----------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The whole steps, ascending. One being written or damaged in names or sizes is not
        among them.
        """
        return self._reader.steps()

    def latest_step(self) -> int | None:
        """The newest whole step."""
        steps = self.steps()
        return steps[-1] if steps else None

    def step_path(self, step: int) -> str:
        """The directory of a step."""
        return join(self.directory, str(step))

    # -- saving ------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Any,
        force: bool = False,
        *,
        items: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        lazy: bool = False,
    ) -> bool:
        """Saves a step if it is due. Every process must call it, at every step.

        Blocks until the state is copied out; it may be changed or donated afterwards. Up to
        ``Options.in_flight`` snapshots are held in host memory, within the budget: one that is
        written, and others that wait. The newest is written first; an older one is dropped once
        a newer one is durable or needs its room, unless the keep policy wants its step, or
        ``force`` was given. So this blocks for the storage only where the room is full of
        snapshots that must be kept or are being written, or is smaller than the state.

        Args:
            step: a number of the training loop, 0 or more.
            state: a pytree; see `jaxckpt.save`.
            force: save also when it is not due, never drop it, and replace a step that exists; the
                old one stays until the new one is durable.
            items: values that go to JSON beside the state, by name: the position of a data
                iterator, a configuration. They come back as JSON holds them: a tuple as a list,
                keys as str.
            metrics: numbers by name, for policies and for orbax; stored as orbax stores them.
            lazy: return at once and copy in the background, behind the next step. The state must
                not be donated before `staged` is True or `wait_staged` has returned; numpy leaves
                are copied before this returns.

        Returns:
            Whether the step is being saved.

        Raises:
            StepExistsError: the step is there and ``force`` is False.
            UnsupportedLeafError: a leaf can not be saved; nothing was written.
            ProcessesDisagreeError, PeerFailedError, PeerMissingError: in a job of several
                processes, on all of them; nothing was written. What goes wrong later is raised by
                the next `save` or `wait`, on all of them.
            DonatedTooEarlyError: later, for a lazy save whose state was donated.
            JaxckptError: also whatever went wrong with an earlier save. This one is under way all
                the same.
        """
        self._refuse_if_closed()
        step = checked_step(step)
        self._recorder.step(step)
        self._schedule.step(step, self._saves)
        preempted = self._preempted()
        due = self._schedule.is_due(step, saving=self._saves.any, preempted=preempted)
        if not (force or preempted or due):
            self._schedule.left()
            return False
        with self._call():
            info = StepInfo(step, time_of(self._world.wall_ns()), checked_metrics(metrics))
            deadline = self._deadline() if preempted else None
            request = StepRequest(
                self.directory, info, items, force, lazy, force or preempted, deadline
            )
            why = "preemption" if preempted else "policy" if due else "forced"
            try:
                began = self._recorder.now()
                try:
                    save = self._saves.begin(request, state)
                except StepExistsError:
                    if force or due:
                        raise
                    return False  # due for nothing but the preemption, and there already
                self._tell(save, began, why, lazy)
                if preempted:
                    self._make_durable(save)
                self._saves.raise_known(save)
            except PreemptedError:
                if not preempted:
                    raise
                self._saves.give_up(_CLEANING_SECS)
                self._warn_of_preemption(step)
            finally:
                if preempted:
                    self._stop = self._answered = True
        return True

    def _preempted(self) -> bool:
        if self._answered:
            self._answered = False
            self._preemption.give_back()
            return False
        return self._preemption.reached()

    def _tell(self, save: StepSave, began: float, why: str, lazy: bool) -> None:
        stall = self._recorder.now() - began
        self._schedule.saved(stall)
        self._recorder.note(
            "save",
            at=began,
            step=save.step,
            stall=stall,
            waited=save.waited_secs,
            bytes=save.nbytes,
            why=why,
            lazy=lazy,
        )
        choice = self._schedule.new_choice()
        if choice is not None:
            self._recorder.note("choice", interval_secs=choice.interval_secs, why=choice.why)
            _log.info("%s: %s", self.directory, choice.why)

    def _deadline(self) -> int | None:
        """Until when a step must be durable, by the monotonic clock; None without a notice."""
        told = self._preemption.at_ns
        if told is None or self._grace_secs is None:
            return None
        cleaning = min(_CLEANING_SECS, self._grace_secs / 10)
        return told + int((self._grace_secs - cleaning) * 1e9)

    def _make_durable(self, save: StepSave) -> None:
        """Within the grace period, or not at all."""
        self._recorder.note("preempted")
        left = ((self._deadline() or 0) - self._world.monotonic_ns()) * 1e-9
        if not self._saves.wait_until(save, left, _CLEANING_SECS):
            self._warn_of_preemption(save.step)

    def _warn_of_preemption(self, step: int) -> None:
        warnings.warn(
            f"step {step} of {self.directory} could not be made durable within the "
            f"{self._grace_secs:g} s after the notice of preemption; the newest durable step is "
            f"{self.latest_step()}.",
            PreemptedWarning,
            stacklevel=4,
        )

    @property
    def should_stop(self) -> bool:
        """Whether the job was told to end and its newest state is saved: leave the loop."""
        return self._stop

    @property
    def dropped(self) -> int:
        """How many snapshots were dropped for newer ones."""
        return self._saves.dropped

    @property
    def choice(self) -> policy.Choice | None:
        """The interval that an `Autopilot` has chosen and why; None before, and without one."""
        return self._schedule.choice

    def staged(self) -> bool:
        """Whether the state of the last save may be changed and donated; always, if not lazy."""
        return self._saves.staged()

    def wait_staged(self) -> None:
        """Blocks until the state of the last save may be changed and donated.

        If it was donated before that, the next call that raises errors of saves says so.
        """
        with self._call():
            self._saves.wait_staged()

    def wait(self) -> None:
        """Blocks until every save in flight is durable, so that it survives loss of power, or was
        dropped for a newer one that is.

        Raises:
            JaxckptError: what went wrong with one; older steps are untouched.
        """
        with self._call():
            self._saves.wait()

    def report(self) -> RunReport:
        """What the run's time went to so far, from its journal; see `jaxckpt.report`.

        Any process may call it.

        Raises:
            CheckpointNotFoundError: there is no journal.
        """
        self._recorder.flush()
        return report(self.directory, world=self._world)

    @contextlib.contextmanager
    def _call(self) -> Generator[None]:
        """Time in here is no training."""
        self._recorder.begin_call()
        try:
            yield
        finally:
            self._recorder.end_call()
            self._schedule.left()

    # -- restoring ---------------------------------------------------------------------------------

    def restore(
        self,
        target: Any = None,
        step: int | None = None,
        *,
        cast: bool = False,
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> Any:
        """Restores a step; blocks until it is on the devices. Every process must call it.

        Args:
            target: see `jaxckpt.restore`.
            step: the newest whole one by default, with a `DamagedStepWarning` for each newer
                one that is not.
            cast, allow_missing, allow_extra: see `jaxckpt.restore`.

        Raises:
            StepNotFoundError: there is no such step; the error says which there are.
            TreeMismatchError, DamagedCheckpointError, FormatVersionError: see `jaxckpt.restore`.
        """
        self._refuse_if_closed()
        with self._call():
            self._saves.wait()
            lenient = Leniency(cast, allow_missing, allow_extra)
            found = self._reader.restore(target, step, lenient)
            self._tell_restore(found)
            return found.tree

    def restore_or(self, state: Any) -> tuple[Any, int]:
        """The newest good step and its number, or the state given and 0 where there is no step.

        Every process must call it, and all get the same step: the primary looks which there are,
        and one that any process finds damaged is passed over by all.

        A damaged step is passed over with a `DamagedStepWarning`. If there are steps and none
        can be read, that is an error and not a beginning from 0.

        Args:
            state: the target, and the answer where there is no step.
        """
        self._refuse_if_closed()
        with self._call():
            self._saves.wait()
            found = self._reader.restore_newest(state)
            if found is None:
                self._recorder.begins(0)
                return state, 0
            self._tell_restore(found)
            return found.tree, found.step

    def restore_item(self, name: str, step: int | None = None) -> Any:
        """A value that was saved beside the state with ``save(..., items={name: value})``.

        Args:
            name: of the item.
            step: the newest whole one by default; in a job of several processes, where each
                process reads by itself, it must be given.

        Raises:
            StepNotFoundError: there is no such step.
            NotACheckpointError: the step has no such item.
        """
        self._refuse_if_closed()
        self.wait()
        return self._reader.restore_item(name, step)

    def _tell_restore(self, found: Restored) -> None:
        at = max(0.0, self._recorder.now() - found.secs)
        self._recorder.note(
            "restore", at=at, step=found.step, secs=found.secs, bytes=tree_bytes(found.tree)
        )
        self._schedule.restored(found.secs)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for the saves in flight and ends the threads; may be called twice.

        Raises:
            JaxckptError: what went wrong with one of them.
        """
        self._close(deliver=True)

    def _close(self, *, deliver: bool) -> None:
        """With a notice that no save has answered yet getting its usual effect, if wanted."""
        try:
            self.wait()
        finally:
            self._finalizer()
            self._recorder.close()
            self._pool.trim()
            if deliver and not self._answered and self._preemption.at_ns is not None:
                self._preemption.give_back()
            self._preemption.close()

    def _refuse_if_closed(self) -> None:
        if not self._finalizer.alive:
            raise ClosedError(f"the Checkpointer of {self.directory} is closed; make a new one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._close(deliver=error is None)
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"besides, the last save failed: {failed}")
