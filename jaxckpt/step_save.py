"""One step of a run, from its state to its directory: what `Checkpointer.save` begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxckpt import policy
from jaxckpt._options import Options
from jaxckpt.agreeing import agree, check_shared
from jaxckpt.commit import Temporary, give_up, open_temporary, publish, retire
from jaxckpt.errors import StepExistsError
from jaxckpt.format import orbaxmeta
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join, write_file
from jaxckpt.io.world import World
from jaxckpt.items import encode_items, state_item_name
from jaxckpt.places import scan_steps
from jaxckpt.planning import fingerprint, plan_state
from jaxckpt.saving import StagedItem, stage
from jaxckpt.single import refuse_if_full


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What is to be saved where.

    Attributes:
        run: the run's directory.
        items: values for JSON by item name.
        replace: take the place of a step that is there.
        keep_last: how many steps stay; None for all.
    """

    run: str
    step: int
    items: Mapping[str, Any] | None
    replace: bool
    keep_last: int | None


class StepSave:
    """A step that is copied out, or could not be; `finish` writes and commits it.

    Every process of the job makes one and calls `finish`. Where one process's copying fails, it
    says so in `finish`, so that all processes learn it at the same place of their program.
    """

    def __init__(
        self,
        world: World,
        options: Options,
        engine: Engine,
        pool: HostPool,
        request: StepRequest,
        state: Any,
    ) -> None:
        self._world, self._request = world, request
        self._started_ns = world.wall_ns()
        self._final = join(request.run, str(request.step))
        self._temporary: Temporary | None = None  # the primary's
        self._failed: Exception | None = None
        self._staged: StagedItem | None = None
        self._operation = world.coordinator.operation(
            f"save of step {request.step} to {request.run}"
        )
        with self._operation, _Discarding(self):
            self._items = encode_items(request.items)
            plan = plan_state(state, options, world.coordinator.processes)
            item = ""
            if world.coordinator.is_primary:
                item = self._open_place(options, plan.nbytes)
            if not self._operation.alone:
                item = agree(self._operation, fingerprint(plan, options, self._items), item)
            try:
                check_shared(world.store, self._operation, item)
                self._staged = stage(world, options, engine, pool, self._operation, plan, item)
            except Exception as error:
                if self._operation.alone:
                    raise
                self._operation.fail(error)
                self._failed = error

    def _open_place(self, options: Options, nbytes: int) -> str:
        """The primary's part before the first byte."""
        store, request = self._world.store, self._request
        if not request.replace and store.stat(self._final) is not None:
            raise StepExistsError(self._final)
        refuse_if_full(self._world, options, request.run, nbytes)
        self._temporary = open_temporary(self._world, self._final)
        item = join(self._temporary.path, state_item_name(self._items))
        store.make_dir(item)
        return item

    def finish(self) -> None:
        """Blocks until the step is durable and listed, and older ones that go are gone.

        The primary commits, the others wait for it.
        """
        with self._operation:
            with _Discarding(self):
                if self._failed is not None:
                    raise self._failed
                assert self._staged is not None
                self._staged.write()
                if self._temporary is not None:
                    self._describe_step(self._temporary.path)
            if self._temporary is not None:
                publish(self._world, self._temporary, self._final, replace=self._request.replace)
            self._operation.meet("committed")
        if self._temporary is not None:
            self._remove_old()

    def _describe_step(self, path: str) -> None:
        store, items = self._world.store, self._items
        handlers = {state_item_name(items): orbaxmeta.STANDARD_HANDLER}
        for name, data in items.items():
            folder = join(path, name)
            store.make_dir(folder)
            write_file(store, join(folder, orbaxmeta.JSON_ITEM_NAME), data)
            store.sync_dir(folder)
            handlers[name] = orbaxmeta.JSON_HANDLER
        about = orbaxmeta.encode_step(handlers, self._started_ns, self._world.wall_ns())
        write_file(store, join(path, orbaxmeta.STEP_NAME), about)

    def _remove_old(self) -> None:
        keep, run = self._request.keep_last, self._request.run
        if keep is not None:
            steps = scan_steps(self._world.store, run).whole
            for old in policy.steps_to_remove(steps, keep, self._request.step):
                retire(self._world, join(run, str(old)))

    def discard(self, error: BaseException) -> None:
        """Removes what the primary made, once no process writes there any more."""
        if self._temporary is not None:
            give_up(self._world, self._operation, self._temporary, error)
            self._temporary = None


class _Discarding:
    """What fails inside the block leaves no directory behind."""

    def __init__(self, save: StepSave) -> None:
        self._save = save

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._save.discard(error)
