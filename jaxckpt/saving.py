"""The line of a save: copy out what `planning.py` planned; then write, sync, index, sidecar.

`StagedItem.copy_out` returns when the state is copied out; `StagedItem.write` makes the item whole
and durable. Publishing it under its name is the commit's work (`commit.py`, or orbax's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import Entry, build_tree
from jaxckpt.format.manifest import MANIFEST_NAME, encode_manifest
from jaxckpt.format.names import INDEX_FILE, process_dir
from jaxckpt.format.sidecar import FileRecord, Sidecar
from jaxckpt.format.zarr import array_metadata, metadata_key
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Engine
from jaxckpt.io.extents import round_up
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join, write_file
from jaxckpt.io.world import World
from jaxckpt.merging import (
    EMPTY_KEY,
    Announcement,
    decode_announcement,
    with_crcs,
    write_root,
)
from jaxckpt.opened import open_item
from jaxckpt.planning import StatePlan
from jaxckpt.reading_back import read_back
from jaxckpt.staging import Staging

_WRITE_SECS = 3600.0  # how long a process waits for one that writes more slowly
_FIXED_BYTES = 8 << 20  # plan, index, threads and the reading back; measured at under 7 MiB


class StagedItem:
    """A state on its way out: `open` and `copy_out`, in the order of ``Staging``, then `write`.

    Args:
        whole: all of it fits into the pool beside what is there.
        expired: an error to end with, once it is too late.
    """

    def __init__(
        self,
        world: World,
        options: Options,
        engine: Engine,
        pool: HostPool,
        operation: Operation,
        state: StatePlan,
        *,
        whole: bool,
        expired: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._world, self._options, self._operation = world, options, operation
        self._process = world.coordinator.process_index
        # Not the arrays: they must not outlive the copying.
        self._root, self._plan = state.root, state.plan
        self._specs = [leaf.spec for leaf in state.leaves]
        self._dir = ""
        total = None if options.compression else sum(map(round_up, state.writes.ends))
        self._tally = world.tally(operation.what, total, shown=options.progress)
        wrote, job = self._tally.add, engine.job()
        self._staging = Staging(
            options, pool, job, state, whole=whole, wrote=wrote, expired=expired
        )

    def open(self, item_dir: str) -> None:
        """Says where the item is made.

        Args:
            item_dir: exists and is empty but for what other processes write.
        """
        store, self._dir = self._world.store, item_dir
        self._tally.begin()
        home = join(item_dir, process_dir(self._process))
        store.make_dir(home)
        store.make_dir(join(home, "d"))
        self._staging.open(store, home)

    def take_hold(self, but: int, *, views: bool) -> None:
        """See ``Staging.take_hold``."""
        self._staging.take_hold(but, views=views)

    def copy_out(self) -> None:
        """Returns once the arrays of the state may be changed or donated."""
        self._staging.copy_out(self._operation.check)

    def stop(self, error: BaseException) -> None:
        """Ends copies and writes under way, with this error."""
        self._staging.stop(error)

    def abandon(self) -> None:
        """Gives all memory back; neither of the others may be running."""
        self._staging.abandon()
        self._tally.end(whole=False)

    def write(self) -> None:
        """Blocks until the item is whole and durable; its name in the parent is not, yet.

        Every process of the job must call this.
        """
        with self._tally:
            sizes = self._staging.finish(self._operation.check)
            own = self._write_database(sizes)
            self._operation.meet("written", own.encode(), self._write_root, _WRITE_SECS)

    def read_back(self, item_dir: str) -> None:
        """Blocks until all that this process wrote has been read from the disk and is the same.

        The primary opens the item as a restore does, too: sidecar, root manifest, whole index.

        Args:
            item_dir: where the item is now.

        Raises:
            DamagedCheckpointError: it is not.
        """
        if self._world.coordinator.is_primary:
            open_item(self._world.store, item_dir)
        home = join(item_dir, process_dir(self._process))
        staging, checksum = self._staging, self._options.checksum
        direct = self._options.direct_io != "off"
        read_back(self._world.store, home, list(staging.values()), staging.crcs, checksum, direct)

    @calm
    def _write_database(self, sizes: dict[str, int]) -> Announcement:
        """The process's own index and manifest."""
        world, process = self._world, process_dir(self._process)
        home = join(self._dir, process)
        entries = self._staging.entries()
        if world.coordinator.is_primary:
            entries.extend(self._metadata())
        if not entries:
            entries.append((EMPTY_KEY, b"1"))
        entries.sort(key=lambda e: e[0])
        blob, root = build_tree(entries, DataFile("", INDEX_FILE), 0)
        manifest = encode_manifest(world.random_bytes(16), root, world.wall_ns())
        write_file(world.store, join(home, INDEX_FILE), blob)
        write_file(world.store, join(home, MANIFEST_NAME), manifest)
        world.store.sync_dir(join(home, "d"))
        world.store.sync_dir(home)
        own = {f"{process}/{name}": FileRecord(size) for name, size in sizes.items()}
        for name, data in ((INDEX_FILE, blob), (MANIFEST_NAME, manifest)):
            own[f"{process}/{name}"] = FileRecord.of(data)
        crcs = self._staging.crcs[self._plan.owners == self._process]
        return Announcement(own, len(entries), crcs)

    def _metadata(self) -> list[Entry]:
        """Zarr's description of each array; the primary's part."""
        cache: dict[tuple[Any, ...], bytes] = {}
        entries: list[Entry] = []
        for spec in self._specs:
            if not spec.dtype:
                continue
            same = (spec.stored_shape, spec.chunk_shape, spec.dtype)
            data = cache.get(same)
            if data is None:
                data = cache[same] = array_metadata(
                    spec.stored_shape,
                    spec.chunk_shape,
                    spec.dtype,
                    checksum=self._options.checksum,
                    compression=self._options.compression,
                )
            entries.append((metadata_key(spec.name), data))
        return entries

    @calm
    def _write_root(self, told: list[bytes]) -> bytes:
        """The primary's part."""
        announced = [decode_announcement(word) for word in told]
        specs = self._specs
        if self._options.checksum:
            specs = with_crcs(specs, self._plan, announced)
        sidecar = Sidecar(
            self._root,
            tuple(specs),
            {},
            len(announced),
            self._options.checksum,
            self._options.compression,
        )
        write_root(self._world, self._dir, sidecar, announced)
        return b""


def headroom(state: StatePlan) -> int:
    """Bytes of the budget that a save needs beside the blocks of the pool."""
    return _FIXED_BYTES + state.temporary_bytes


def stage(
    world: World,
    options: Options,
    engine: Engine,
    pool: HostPool,
    operation: Operation,
    state: StatePlan,
    item_dir: str,
    *,
    waits: bool,
) -> StagedItem:
    """Copies what this process writes of a planned state out of its arrays.

    The caller may change or donate them afterwards. Every process must call it, and no other save
    may hold blocks of the pool.

    Args:
        item_dir: see ``StagedItem.open``.
        waits: the caller waits for the end anyway, so writing may begin with the first copies.
    """
    pool.set_headroom(headroom(state))
    whole = not waits and state.writes.blocks(pool.block_bytes) <= pool.blocks
    staged = StagedItem(world, options, engine, pool, operation, state, whole=whole)
    try:
        staged.open(item_dir)
        staged.copy_out()
    except BaseException:
        staged.abandon()
        raise
    return staged
