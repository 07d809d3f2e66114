"""The line of a save: copy out what `planning.py` planned; then write, sync, index, sidecar.

`stage` returns when the state is copied out; `StagedItem.write` makes the item whole and durable.
Publishing it under its name is the commit's work (`commit.py`, or orbax's).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import crc32c
import numpy as np

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt.device.host_view import host_chunk, prepare_chunk
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import Entry, build_tree
from jaxckpt.format.manifest import MANIFEST_NAME, encode_manifest
from jaxckpt.format.names import INDEX_FILE, data_file, process_dir
from jaxckpt.format.sidecar import FileRecord, Sidecar
from jaxckpt.format.zarr import array_metadata, chunk_key, metadata_key
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.datafiles import DataFiles
from jaxckpt.io.engine import Engine, Job
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join, write_file
from jaxckpt.io.world import World
from jaxckpt.layout.placement import Place
from jaxckpt.layout.save_plan import PlannedChunk
from jaxckpt.merging import (
    EMPTY_KEY,
    Announcement,
    decode_announcement,
    with_crcs,
    write_root,
)
from jaxckpt.planning import StatePlan

INLINE_BYTES = 4096
"""Values up to this size lie in the B+tree itself, so that all small leaves are one read."""
_WRITE_SECS = 3600.0  # how long a process waits for one that writes more slowly
_FIXED_BYTES = 4 << 20  # plan, index and threads of a save; measured at under 3 MiB
_TOGETHER_BYTES = 256 << 10  # below this a copy costs less than handing it to a thread
_Copy = Callable[[], None]


class StagedItem:
    """A state that is copied out, its writes under way.

    Attributes:
        nbytes: raw bytes of the arrays of this process.
    """

    def __init__(
        self,
        world: World,
        options: Options,
        operation: Operation,
        state: StatePlan,
        chunks: list[PlannedChunk],
        item_dir: str,
        files: DataFiles,
    ) -> None:
        self._world, self._options, self._state, self._chunks = world, options, state, chunks
        self._operation, self._dir, self._files = operation, item_dir, files
        self._process = world.coordinator.process_index
        self._entries: list[Entry] = []
        self._writes: list[Future[None]] = []
        self._crcs = np.zeros(len(state.plan.owners), np.uint32)
        self._padding = threading.Lock()  # one padded copy of a chunk at a time
        self._job: Job | None = None
        self.nbytes = 0

    def write(self) -> None:
        """Blocks until the item is whole and durable; its name in the parent is not, yet.

        Every process of the job must call this.
        """
        assert self._job is not None
        try:
            self._job.join(self._writes, self._operation.check)
            sizes = self._files.sync()
        except BaseException:
            self._files.abandon()
            raise
        own = self._write_database(sizes)
        self._operation.meet("written", own.encode(), self._write_root, _WRITE_SECS)

    @calm
    def _write_database(self, sizes: dict[str, int]) -> Announcement:
        """The process's own index and manifest."""
        world, process = self._world, process_dir(self._process)
        home = join(self._dir, process)
        if not self._entries:
            self._entries.append((EMPTY_KEY, b"1"))
        self._entries.sort(key=lambda e: e[0])
        blob, root = build_tree(self._entries, DataFile("", INDEX_FILE), 0)
        manifest = encode_manifest(world.random_bytes(16), root, world.wall_ns())
        write_file(world.store, join(home, INDEX_FILE), blob)
        write_file(world.store, join(home, MANIFEST_NAME), manifest)
        world.store.sync_dir(join(home, "d"))
        world.store.sync_dir(home)
        own = {f"{process}/{name}": FileRecord(size) for name, size in sizes.items()}
        for name, data in ((INDEX_FILE, blob), (MANIFEST_NAME, manifest)):
            own[f"{process}/{name}"] = FileRecord.of(data)
        crcs = self._crcs[self._state.plan.owners == self._process]
        return Announcement(own, len(self._entries), crcs)

    @calm
    def _write_root(self, told: list[bytes]) -> bytes:
        """The primary's part."""
        announced = [decode_announcement(word) for word in told]
        specs = [leaf.spec for leaf in self._state.leaves]
        if self._options.checksum:
            specs = with_crcs(specs, self._state.plan, announced)
        sidecar = Sidecar(
            self._state.root,
            tuple(specs),
            {},
            len(announced),
            self._options.checksum,
            self._options.compression,
        )
        write_root(self._world, self._dir, sidecar, announced)
        return b""

    # -- staging ---------------------------------------------------------------------------------

    @calm
    def copy_out(self, job: Job) -> None:
        """Copies every chunk of this process to its place; returns once nothing of the state is
        needed any more.
        """
        self._job = job
        tasks: list[Future[None]] = []
        try:
            for chunk in self._chunks:
                prepare_chunk(self._state.leaves[chunk.leaf].described.source, chunk)
            for copies in self._in_order():
                tasks.append(job.copy(functools.partial(_run_all, copies)))  # noqa: PERF401
            if self._world.coordinator.is_primary:
                self._add_metadata()
        except BaseException as error:  # noqa: BLE001  (raised by join, once no copy is running)
            job.fail(error)
        try:
            job.join(tasks, self._operation.check)
            self._writes = self._files.flush()
        except BaseException:
            job.fail(RuntimeError("stopped"))
            self._files.abandon()
            raise

    def _in_order(self) -> Iterator[list[_Copy]]:
        """The copies of this process's chunks, small ones together, in the order of their places.

        Threads begin them in that order, which bounds the windows that are begun and not full
        (see `io/extents.py`).
        """
        together: list[_Copy] = []
        held = 0
        for chunk in self._chunks:
            self.nbytes += chunk.nbytes
            copy = self._plan_copy(chunk)
            if copy is not None:
                together.append(copy)
                held += chunk.nbytes
            if held >= _TOGETHER_BYTES:
                yield together
                together, held = [], 0
        if together:
            yield together

    def _plan_copy(self, chunk: PlannedChunk) -> _Copy | None:
        """Gives a chunk its place; returns its copy, or None for a value of the index."""
        leaf = self._state.leaves[chunk.leaf]
        key = chunk_key(leaf.spec.name, chunk.position)
        row = self._state.plan.starts[chunk.leaf] + chunk.number
        crcs = self._crcs

        uneven = chunk.box.shape != leaf.spec.chunk_shape
        padding = self._padding if uneven else contextlib.nullcontext()

        def value() -> np.ndarray:
            found = host_chunk(leaf.described.source, chunk)
            return _padded(found, leaf.spec.chunk_shape)

        if self._options.compression:

            def compress() -> None:
                with padding:
                    place, crcs[row] = self._files.put_compressed(value())
                self._entries.append((key, _ref(place)))

            return compress
        if chunk.nbytes <= INLINE_BYTES:
            data = value().tobytes()
            if self._options.checksum:
                crcs[row] = crc32c.crc32c(data)
                data += crcs[row].tobytes()
            self._entries.append((key, data))
            return None
        place = self._files.place(chunk.nbytes)
        self._entries.append((key, _ref(place)))

        def copy() -> None:
            if place.begins_file and place.file:
                self._files.seal(place.file - 1)
            with padding:
                crcs[row] = self._files.put(place, value())

        return copy

    def _add_metadata(self) -> None:
        cache: dict[tuple[Any, ...], bytes] = {}
        for leaf in self._state.leaves:
            spec = leaf.spec
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
            self._entries.append((metadata_key(spec.name), data))


def stage(
    world: World,
    options: Options,
    engine: Engine,
    pool: HostPool,
    operation: Operation,
    state: StatePlan,
    item_dir: str,
    *,
    may_grow: bool = True,
) -> StagedItem:
    """Copies what this process writes of a planned state out of its arrays.

    The caller may change or donate them afterwards. Every process must call it.

    Args:
        item_dir: exists and is empty but for what other processes write.
        may_grow: see ``HostPool.acquire``; False for a caller that waits for the end anyway.
    """
    home = join(item_dir, process_dir(world.coordinator.process_index))
    world.store.make_dir(home)
    world.store.make_dir(join(home, "d"))
    chunks = state.plan.owned_by(world.coordinator.process_index)
    pool.set_headroom(_FIXED_BYTES + _temporary_bytes(state, chunks, options))
    job = engine.job()
    files = DataFiles(
        world.store,
        home,
        pool,
        job,
        data_file_bytes=options.data_file_bytes,
        checksum=options.checksum,
        direct=options.direct_io != "off",
        may_grow=may_grow,
    )
    staged = StagedItem(world, options, operation, state, chunks, item_dir, files)
    staged.copy_out(job)
    return staged


def _run_all(copies: list[_Copy]) -> None:
    for copy in copies:
        copy()


def _temporary_bytes(state: StatePlan, chunks: list[PlannedChunk], options: Options) -> int:
    """What temporary copies of chunks take: one compressed or made contiguous, one padded."""
    copies = 2 if options.compression else 1
    needed = padded = 0
    for chunk in chunks:
        source = state.leaves[chunk.leaf].described.source
        whole = chunk.box == chunk.region
        row_wise = whole or chunk.box.shape[1:] == chunk.region.shape[1:]
        fortran = isinstance(source, np.ndarray) and not source.flags.c_contiguous
        if options.compression or not row_wise or fortran:
            needed = max(needed, copies * chunk.nbytes)
        if chunk.box.shape != state.plan.chunk_shapes[chunk.leaf]:
            padded = max(padded, chunk.nbytes)
    return needed + padded


def _padded(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A chunk at an uneven end, in the full shape in which Zarr stores it."""
    if value.shape == shape:
        return value
    whole = np.zeros(shape, value.dtype)
    whole[tuple(map(slice, value.shape))] = value
    return whole


def _ref(place: Place) -> ValueRef:
    return ValueRef(DataFile("", data_file(place.file)), place.offset, place.length)
