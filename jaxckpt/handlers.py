"""The door through orbax: a `CheckpointHandler` for its `CheckpointManager` and checkpointers.

The only module that imports orbax, and only what it publishes. Orbax makes, commits and deletes
the step directories; this makes the item inside whole, checked and durable.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from jaxckpt._options import Options, checked_options
from jaxckpt.agreeing import agree
from jaxckpt.dist import default_coordinator
from jaxckpt.errors import InvalidOptionsError, StorageError
from jaxckpt.format import orbaxmeta
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.world import local_world
from jaxckpt.places import checked_path, find_item
from jaxckpt.planning import StatePlan, fingerprint
from jaxckpt.replanning import Planner
from jaxckpt.restoring import Leniency, open_any, restore_tree
from jaxckpt.saving import StagedItem, stage
from jaxckpt.single import refuse_if_full

CommitFuture: Any = ocp.future.CommitFutureAwaitingContractedSignals  # pyright: ignore[reportAttributeAccessIssue]
_DIRECTORY_TIMEOUT_SECS = 60.0


class ShardedCheckpointHandler(ocp.AsyncCheckpointHandler):
    """Saves and restores pytrees with jaxckpt inside an orbax loop.

    ``ocp.CheckpointManager(path, item_handlers=jaxckpt.ShardedCheckpointHandler())`` and then
    ``save(step, args=jaxckpt.ShardedSave(state))``,
    ``restore(step, args=jaxckpt.ShardedRestore(target))``. A process without jaxckpt restores
    the steps with ``ocp.args.StandardRestore``. It restores steps that orbax's own handlers wrote.

    Orbax does not sync the step directory that it commits; a step survives a crash of the
    process, but `jaxckpt.Checkpointer` is what survives loss of power. In a job of several
    processes every process makes one, as orbax asks of its own.

    Args:
        options: see `Options`.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = checked_options(options)
        direct = self._options.direct_io == "on"
        self._world = local_world(default_coordinator(), require_direct=direct)
        self._pool = HostPool(self._options.memory_budget_bytes)
        self._engine = Engine(self._options.writer_threads)
        self._planner = Planner(self._options, self._world.coordinator.processes)
        # Orbax asks the instance which handler to name in a step's metadata. The name of its own
        # makes any orbax find a handler that reads the step, with jaxckpt or without; the class
        # keeps its own name, under which orbax registers it.
        vars(self)["typestr"] = lambda: orbaxmeta.STANDARD_HANDLER

    async def async_save(self, directory: epath.Path, args: ShardedSave) -> list[Any] | None:
        """Returns once the state is copied out; the futures once the item is durable."""
        path = checked_path(directory)
        operation = self._begin(path)
        staged: StagedItem | None = None
        failed: Exception | None = None
        with operation:
            plan = self._plan(operation, args.item)
            try:
                await self._wait_for_directory(path)
                staged = self._stage(operation, path, plan, waits=False)
            except Exception as error:
                if operation.alone:
                    raise
                operation.fail(error)
                failed = error  # raised by the future, as the others' errors are

        def write() -> None:
            with operation:
                if failed is not None:
                    raise failed
                assert staged is not None
                staged.write()
                operation.meet("whole")

        async def finish() -> None:
            await asyncio.to_thread(write)

        return [CommitFuture(finish(), name="jaxckpt-item")]

    async def _wait_for_directory(self, path: str) -> None:
        """Orbax may make the directory on a thread of its own, begun before this call."""
        end = time.monotonic() + _DIRECTORY_TIMEOUT_SECS
        while self._world.store.stat(path) is None:
            if time.monotonic() > end:
                raise StorageError(
                    "save",
                    path,
                    FileNotFoundError(2, "No such file or directory"),
                    f"Orbax did not make the directory within {_DIRECTORY_TIMEOUT_SECS:.0f} s.",
                )
            await asyncio.sleep(0.001)

    def save(self, directory: epath.Path, args: ShardedSave) -> None:
        """Saves and waits until the item is durable."""
        path = checked_path(directory)
        with self._begin(path) as operation:
            plan = self._plan(operation, args.item)
            self._stage(operation, path, plan, waits=True).write()
            operation.meet("whole")

    def _begin(self, path: str) -> Operation:
        return self._world.coordinator.operation(f"save to {path}")

    def _plan(self, operation: Operation, state: Any) -> StatePlan:
        plan = self._planner.plan(state)
        if not operation.alone:
            agree(operation, fingerprint(plan, self._options))
        return plan

    def _stage(
        self, operation: Operation, path: str, plan: StatePlan, *, waits: bool
    ) -> StagedItem:
        if self._world.coordinator.is_primary:
            refuse_if_full(self._world, self._options, path, plan.nbytes)
        world, options, engine, pool = self._world, self._options, self._engine, self._pool
        return stage(world, options, engine, pool, operation, plan, path, waits=waits)

    def restore(self, directory: epath.Path, args: ShardedRestore | None = None) -> Any:
        """Restores the item; see `jaxckpt.restore`."""
        args = args or ShardedRestore()
        path = checked_path(directory)
        lenient = Leniency(args.cast, args.allow_missing, args.allow_extra)
        with self._world.coordinator.operation(f"restore of {path}") as operation:
            item = open_any(self._world, find_item(self._world.store, path))
            return restore_tree(
                self._world, self._options, self._engine, operation, item, args.item, lenient
            )

    def metadata(self, directory: epath.Path) -> Any:
        """The tree as orbax's own handler describes it."""
        return ocp.StandardCheckpointHandler().metadata(directory)

    def finalize(self, directory: epath.Path) -> None:
        """Nothing is left to do: the item was complete when its future was."""

    def close(self) -> None:
        """Ends the threads."""
        self._engine.close()
        self._pool.trim()


@ocp.args.register_with_handler(ShardedCheckpointHandler, for_save=True)
@dataclasses.dataclass
class ShardedSave(ocp.args.CheckpointArgs):
    """What to save: ``item`` is a pytree; see `jaxckpt.save`."""

    item: Any

    def __post_init__(self) -> None:
        if isinstance(self.item, ocp.args.CheckpointArgs):
            raise InvalidOptionsError("item", type(self.item).__name__, "a pytree to save")


@ocp.args.register_with_handler(ShardedCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class ShardedRestore(ocp.args.CheckpointArgs):
    """What to restore; the fields are the arguments of `jaxckpt.restore`, ``item`` its target."""

    item: Any = None
    cast: bool = False
    allow_missing: bool = False
    allow_extra: bool = False
