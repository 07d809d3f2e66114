"""A run's directory, and its steps: the newest good one, a given one, a value beside it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from jaxckpt._options import Options
from jaxckpt.commit import clean_leftovers
from jaxckpt.errors import (
    DamagedCheckpointError,
    DamagedStepWarning,
    InvalidOptionsError,
    NotACheckpointError,
    NotSharedError,
    StepNotFoundError,
)
from jaxckpt.format import orbaxmeta, strictjson
from jaxckpt.format.limits import MAX_JSON_BYTES
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Engine
from jaxckpt.io.store import join, make_dirs, parent_of, read_file
from jaxckpt.io.world import World
from jaxckpt.items import is_item_name
from jaxckpt.places import agree_on_steps, find_item, scan_steps
from jaxckpt.restoring import Leniency, open_any, restore_tree

_STACK = 4  # from here to the caller of a `Checkpointer`


def open_run(world: World, run: str) -> None:
    """Makes the directory of a run if it is not there, and removes what killed processes left.

    Blocks until every process has seen it; every process must call it.

    Raises:
        NotACheckpointError: it is a file.
        StorageError: it can not be made or listed.
        NotSharedError, PeerFailedError, PeerMissingError: in a job of several processes.
    """
    store = world.store
    with world.coordinator.operation(f"opening of {run}") as operation:
        if operation.process_index == 0:
            found = store.stat(run)
            if found is not None and not found.is_dir:
                raise NotACheckpointError(run, "it is a file", "Give a directory for the run.")
            for new in make_dirs(store, run):
                store.sync_dir(parent_of(new))
            clean_leftovers(world, run)
        operation.meet("directory is there")
        if store.stat(run) is None:
            raise NotSharedError(run, operation.process_index, "the directory")
        operation.meet("directory is seen")


@dataclass(frozen=True, slots=True)
class Restored:
    """A step that came back, and how long that took."""

    tree: Any
    step: int
    secs: float


class RunReader:
    """What `Checkpointer` reads; its methods are described there."""

    def __init__(self, world: World, options: Options, engine: Engine, run: str) -> None:
        self._world, self._options, self._engine, self._run = world, options, engine, run

    def steps(self) -> list[int]:
        """The whole steps, ascending."""
        return scan_steps(self._world.store, self._run).whole

    def restore(self, target: Any, step: int | None, lenient: Leniency) -> Restored:
        """A given step, or the newest whole one."""
        asked = "the newest step" if step is None else f"step {step}"
        with self._operation(f"restore of {asked} of {self._run}") as operation:
            scan = agree_on_steps(operation, self._world.store, self._run)
            if step is None and scan.whole:
                step = scan.whole[-1]
                for newer in sorted(s for s in scan.damaged if s > step):
                    self._warn_of(newer, scan.damaged[newer])
            if step is None or (step not in scan.whole and not self._is_there(step)):
                raise StepNotFoundError(self._run, step, scan.whole)
            return self._restore_step(operation, step, target, lenient)

    def restore_newest(self, state: Any) -> Restored | None:
        """The newest good step; None where there is no step."""
        with self._operation(f"look at the steps of {self._run}") as operation:
            scan = agree_on_steps(operation, self._world.store, self._run)
        damaged: DamagedCheckpointError | NotACheckpointError | None = None
        for step in sorted([*scan.whole, *scan.damaged], reverse=True):
            try:
                if step in scan.damaged:
                    raise DamagedCheckpointError(self._path(step), scan.damaged[step])
                with self._operation(f"restore of step {step} of {self._run}") as operation:
                    return self._restore_step(operation, step, state, Leniency())
            except (DamagedCheckpointError, NotACheckpointError) as error:
                self._warn_of(step, error)
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return None

    def restore_item(self, name: str, step: int | None) -> Any:
        """A JSON value of a given step, or of the newest whole one."""
        if not is_item_name(name):
            raise InvalidOptionsError("name", name, "the name of an item that was saved")
        if step is None:
            if self._world.coordinator.process_count > 1:
                wanted = "the step that was restored: in a job all processes must read the same one"
                raise InvalidOptionsError("step", step, wanted)
            step = max(self.steps(), default=None)
        if step is None or not self._is_there(step):
            raise StepNotFoundError(self._run, step, self.steps())
        path = join(self._path(step), name)
        file = join(path, orbaxmeta.JSON_ITEM_NAME)
        try:
            data = read_file(self._world.store, file, MAX_JSON_BYTES, self._path(step))
            return strictjson.parse(data, file)
        except FileNotFoundError as error:
            names = sorted(self._world.store.list_dir(self._path(step)))
            raise NotACheckpointError(
                path, "the step has no such item", f"The step holds: {', '.join(names)}."
            ) from error
        except ValueError as error:
            raise DamagedCheckpointError(file, str(error)) from error

    def _restore_step(
        self, operation: Operation, step: int, target: Any, lenient: Leniency
    ) -> Restored:
        path = self._path(step)
        if operation.process_index and self._world.store.stat(path) is None:
            raise NotSharedError(self._run, operation.process_index, f"step {step}")
        began = self._world.monotonic_ns()
        item = open_any(self._world, find_item(self._world.store, path))
        tree = restore_tree(
            self._world, self._options, self._engine, operation, item, target, lenient
        )
        return Restored(tree, step, (self._world.monotonic_ns() - began) * 1e-9)

    def _warn_of(self, step: int, problem: object) -> None:
        warnings.warn(
            f"step {step} of {self._run} is damaged and passed over: {problem}",
            DamagedStepWarning,
            stacklevel=_STACK,
        )

    def _is_there(self, step: int) -> bool:
        return self._world.store.stat(self._path(step)) is not None

    def _path(self, step: int) -> str:
        return join(self._run, str(step))

    def _operation(self, what: str) -> Operation:
        return self._world.coordinator.operation(what)
