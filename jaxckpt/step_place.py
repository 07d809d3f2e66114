"""The directory of a step, from its hidden beginning to its name: the primary's part of a save."""

from __future__ import annotations

from collections.abc import Mapping

from jaxckpt.commit import Temporary, give_up, open_temporary, publish
from jaxckpt.format import orbaxmeta
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.store import join, write_file
from jaxckpt.io.world import World
from jaxckpt.items import METRICS_ITEM, state_item_name


class StepPlace:
    """Where a step is made; as a context manager it discards what an error leaves unpublished.

    Every process has one, and the primary alone opens it; the others' does nothing.

    Args:
        operation: the save; whoever discards waits until no process writes there any more.
        final: the step's directory.
        items: JSON beside the state, by name.

    Attributes:
        final_item: where the state will be.
    """

    def __init__(
        self, world: World, operation: Operation, final: str, items: Mapping[str, bytes]
    ) -> None:
        self._world, self._operation, self._final, self._items = world, operation, final, items
        self._started_ns = world.wall_ns()
        self._temporary: Temporary | None = None
        self.final_item = join(final, state_item_name(items))

    @property
    def opened(self) -> bool:
        """Whether this process made the directory."""
        return self._temporary is not None

    def open(self) -> str:
        """Makes the hidden directory; where the state goes in it."""
        self._temporary = open_temporary(self._world, self._final)
        item = join(self._temporary.path, state_item_name(self._items))
        self._world.store.make_dir(item)
        return item

    def describe(self) -> None:
        """Writes the other items and the step's metadata: after it the step is complete."""
        if self._temporary is None:
            return
        store, path = self._world.store, self._temporary.path
        handlers = {state_item_name(self._items): orbaxmeta.STANDARD_HANDLER}
        for name, data in self._items.items():
            folder = join(path, name)
            file = name if name == METRICS_ITEM else orbaxmeta.JSON_ITEM_NAME
            store.make_dir(folder)
            write_file(store, join(folder, file), data)
            store.sync_dir(folder)
            handlers[name] = orbaxmeta.JSON_HANDLER
        about = orbaxmeta.encode_step(handlers, self._started_ns, self._world.wall_ns())
        write_file(store, join(path, orbaxmeta.STEP_NAME), about)

    def publish(self, *, replace: bool) -> None:
        """Gives it its name, durably; only where it is `opened`."""
        assert self._temporary is not None
        publish(self._world, self._temporary, self._final, replace=replace)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._temporary is not None:
            give_up(self._world, self._operation, self._temporary, error)
            self._temporary = None
