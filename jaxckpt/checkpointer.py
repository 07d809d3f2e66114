"""The door for a training loop: `Checkpointer`."""

from __future__ import annotations

import operator
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from concurrent.futures import wait
from types import TracebackType
from typing import Any, Self

from jaxckpt import policy
from jaxckpt._options import Options, checked_options
from jaxckpt.commit import clean_leftovers
from jaxckpt.dist import default_coordinator
from jaxckpt.errors import (
    ClosedError,
    DamagedCheckpointError,
    DamagedStepWarning,
    InvalidOptionsError,
    NotACheckpointError,
    NotSharedError,
    StepNotFoundError,
)
from jaxckpt.format import orbaxmeta, strictjson
from jaxckpt.format.limits import MAX_JSON_BYTES
from jaxckpt.format.names import MAX_STEP
from jaxckpt.in_flight import InFlight
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join, make_dirs, parent_of, read_file
from jaxckpt.io.world import World, local_world
from jaxckpt.items import is_item_name
from jaxckpt.places import agree_on_steps, checked_path, find_item, scan_steps
from jaxckpt.replanning import Planner
from jaxckpt.restoring import Leniency, open_any, restore_tree
from jaxckpt.retention import Retention
from jaxckpt.step_save import THREAD_NAME, StepRequest, StepSave, Tools


class Checkpointer:
    """Saves and restores the steps of one run.

    A directory ``<run>/<step>`` for each step, as orbax's ``CheckpointManager`` makes them; it
    lists and restores them, and this class reads those that it made. A save returns once the
    state is copied out and is finished in the background; one save is under way at a time. Call
    `close` at the end, or use it as a context manager. Not for several threads at once.

    In a job of several processes every process makes one on the same shared directory, which blocks
    until all have, and all call `save`, `restore` and `restore_or` in the same order. `steps`,
    `latest_step`, `restore_item`, `wait` and `close` talk to nobody.

    Args:
        directory: of the run; made if it is not there.
        save_every: `save` does something at multiples of this step number only.
        keep_last: older whole steps are removed once a newer one is durable; None keeps all.
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
        save_every: int = 1,
        keep_last: int | None = None,
        options: Options | None = None,
        world: World | None = None,
    ) -> None:
        _check_count("save_every", save_every)
        if keep_last is not None:
            _check_count("keep_last", keep_last)
        self.options = checked_options(options)
        self.directory = checked_path(directory)
        self._save_every = save_every
        direct = self.options.direct_io == "on"
        self._world = world or local_world(default_coordinator(), require_direct=direct)
        self._prepare_directory()
        self._pool = HostPool(self.options.memory_budget_bytes)
        self._engine = Engine(self.options.writer_threads)
        self._tools = Tools(
            self._world,
            self.options,
            self._engine,
            self._pool,
            Planner(self.options, self._world.coordinator.processes),
            InFlight(self.options.in_flight, self._pool),
            Retention(self._world.store, self.directory, keep_last),
        )
        self._saves: list[StepSave] = []  # in flight, or failed; shared with the finalizer
        # Runs at the latest when the interpreter ends, after the saves in flight.
        self._finalizer = weakref.finalize(
            self, _shut_down, self.directory, self._engine, self._saves
        )

    def _prepare_directory(self) -> None:
        store = self._world.store
        with self._operation(f"opening of {self.directory}") as operation:
            if operation.process_index == 0:
                found = store.stat(self.directory)
                if found is not None and not found.is_dir:
                    raise NotACheckpointError(
                        self.directory, "it is a file", "Give a directory for the run."
                    )
                for new in make_dirs(store, self.directory):
                    store.sync_dir(parent_of(new))
                clean_leftovers(self._world, self.directory)
            operation.meet("directory is there")
            if store.stat(self.directory) is None:
                raise NotSharedError(self.directory, operation.process_index, "the directory")
            operation.meet("directory is seen")

    # -- what is there -----------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The whole steps, ascending. One being written or damaged in names or sizes is not
        among them.
        """
        return scan_steps(self._world.store, self.directory).whole

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
        lazy: bool = False,
    ) -> bool:
        """Saves a step if it is due.

        Blocks while an earlier save is being written, and until the state is copied out; the
        state may be changed or donated afterwards. Every process must call it.

        Args:
            step: a number of the training loop, 0 or more.
            state: a pytree; see `jaxckpt.save`.
            force: save also when it is not due, and replace a step that exists; the old one
                stays until the new one is durable.
            items: values that go to JSON beside the state, by name: the position of a data
                iterator, a configuration. They come back as JSON holds them: a tuple as a list,
                keys as str.

        Returns:
            Whether the step is being saved.

        Raises:
            StepExistsError: the step is there and ``force`` is False.
            UnsupportedLeafError: a leaf can not be saved; nothing was written.
            ProcessesDisagreeError, PeerFailedError, PeerMissingError: in a job of several
                processes, on all of them; nothing was written. What goes wrong later is raised by
                the next `save` or `wait`, on all of them.
            JaxckptError: also whatever went wrong with the save before.
        """
        self._refuse_if_closed()
        step = _checked_step(step)
        if not force and not policy.is_due(step, self._save_every):
            return False
        self.wait_staged()
        saves = self._saves
        saves[:] = [s for s in saves if not s.done.done() or s.done.exception() is not None]
        request = StepRequest(
            self.directory,
            step,
            items,
            force,
            lazy,
            [s.number for s in saves if s.done.done()],
        )
        save = StepSave(self._tools, request, state)
        failed = [s for s in saves if s.number in save.failed]
        saves.append(save)
        self._raise_errors(failed, f"step {step} is being saved nevertheless")
        return True

    def staged(self) -> bool:
        """Whether the state of the last save may be changed and donated."""
        return not self._saves or self._saves[-1].staged.is_set()

    def wait_staged(self) -> None:
        """Blocks until the state of the last save may be changed and donated.

        If it was donated before, the next call that raises errors of saves says so.
        """
        if self._saves:
            self._saves[-1].staged.wait()

    def wait(self) -> None:
        """Blocks until every save in flight is durable, so that it survives loss of power, or was
        dropped for a newer one that is.

        Raises:
            JaxckptError: what went wrong with one; older steps are untouched.
        """
        wait([save.done for save in self._saves])
        self._raise_errors(list(self._saves))

    def _raise_errors(self, saves: list[StepSave], note: str = "") -> None:
        """Raises the first error among saves, each once; waits for them, which have ended or are
        about to.
        """
        errors = [error for save in saves if (error := save.done.exception()) is not None]
        self._saves[:] = [save for save in self._saves if save not in saves]
        if not errors:
            return
        for other in errors[1:]:
            errors[0].add_note(f"besides, another save failed: {other}")
        if note:
            errors[0].add_note(note)
        raise errors[0]

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
        self.wait()
        asked = "the newest step" if step is None else f"step {step}"
        with self._operation(f"restore of {asked} of {self.directory}") as operation:
            scan = agree_on_steps(operation, self._world.store, self.directory)
            if step is None and scan.whole:
                step = scan.whole[-1]
                for newer in sorted(s for s in scan.damaged if s > step):
                    self._warn_of(newer, scan.damaged[newer])
            if step is None or (step not in scan.whole and not self._is_there(step)):
                raise StepNotFoundError(self.directory, step, scan.whole)
            lenient = Leniency(cast, allow_missing, allow_extra)
            return self._restore_step(operation, step, target, lenient)

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
        self.wait()
        with self._operation(f"look at the steps of {self.directory}") as operation:
            scan = agree_on_steps(operation, self._world.store, self.directory)
        damaged: DamagedCheckpointError | NotACheckpointError | None = None
        for step in sorted([*scan.whole, *scan.damaged], reverse=True):
            try:
                if step in scan.damaged:
                    raise DamagedCheckpointError(self.step_path(step), scan.damaged[step])
                with self._operation(f"restore of step {step} of {self.directory}") as operation:
                    return self._restore_step(operation, step, state, Leniency()), step
            except (DamagedCheckpointError, NotACheckpointError) as error:
                self._warn_of(step, error)
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return state, 0

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
        if not is_item_name(name):
            raise InvalidOptionsError("name", name, "the name of an item that was saved")
        if step is None:
            if self._world.coordinator.process_count > 1:
                wanted = "the step that was restored: in a job all processes must read the same one"
                raise InvalidOptionsError("step", step, wanted)
            step = self.latest_step()
        if step is None or not self._is_there(step):
            raise StepNotFoundError(self.directory, step, self.steps())
        path = join(self.step_path(step), name)
        file = join(path, orbaxmeta.JSON_ITEM_NAME)
        try:
            data = read_file(self._world.store, file, MAX_JSON_BYTES, self.step_path(step))
            return strictjson.parse(data, file)
        except FileNotFoundError as error:
            names = sorted(self._world.store.list_dir(self.step_path(step)))
            raise NotACheckpointError(
                path, "the step has no such item", f"The step holds: {', '.join(names)}."
            ) from error
        except ValueError as error:
            raise DamagedCheckpointError(file, str(error)) from error

    def _warn_of(self, step: int, problem: object) -> None:
        warnings.warn(
            f"step {step} of {self.directory} is damaged and passed over: {problem}",
            DamagedStepWarning,
            stacklevel=3,
        )

    def _is_there(self, step: int) -> bool:
        return self._world.store.stat(self.step_path(step)) is not None

    def _operation(self, what: str) -> Operation:
        return self._world.coordinator.operation(what)

    def _restore_step(self, operation: Operation, step: int, target: Any, lenient: Leniency) -> Any:
        path = self.step_path(step)
        if operation.process_index and self._world.store.stat(path) is None:
            raise NotSharedError(self.directory, operation.process_index, f"step {step}")
        item = open_any(self._world, find_item(self._world.store, path))
        return restore_tree(
            self._world, self.options, self._engine, operation, item, target, lenient
        )

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for the save under way and ends the threads; may be called twice.

        Raises:
            JaxckptError: what went wrong with the save under way.
        """
        try:
            self.wait()
        finally:
            self._finalizer()
            self._pool.trim()

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
            self.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"besides, the last save failed: {failed}")


def _shut_down(directory: str, engine: Engine, saves: list[StepSave]) -> None:
    # The last reference may be a save's own: then this runs on its thread, which can not wait
    # for itself.
    own = threading.current_thread().name
    for save in saves:
        if own != f"{THREAD_NAME}-{save.step}":
            wait([save.done])
    engine.close()
    for save in saves:
        error = save.done.exception() if save.done.done() else None
        if error is not None:
            warnings.warn(
                f"a save to {directory} failed and nobody waited for it: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _checked_step(step: object) -> int:
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
