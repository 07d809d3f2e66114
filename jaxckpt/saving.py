"""The line of a save: tree, leaves, plan, copy out; then write, sync, index, sidecar.

`stage` returns when the state is copied out; `StagedItem.write` makes the item whole and durable.
Publishing it under its name is the commit's work (`commit.py`, or orbax's).
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import crc32c
import numpy as np

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt._types import ARRAY_KINDS, LeafSpec
from jaxckpt.device.host_view import host_region
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format import orbaxmeta
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.frame import FormatError
from jaxckpt.format.index import Entry, build_tree, read_tree
from jaxckpt.format.manifest import MANIFEST_NAME, Root, decode_manifest, encode_manifest
from jaxckpt.format.names import INDEX_FILE, data_file, process_dir
from jaxckpt.format.sidecar import SIDECAR_NAME, FileRecord, Sidecar, encode_sidecar
from jaxckpt.format.tree import TreeNode
from jaxckpt.format.zarr import array_metadata, chunk_key, metadata_key
from jaxckpt.io.datafiles import DataFiles
from jaxckpt.io.engine import Engine, Job
from jaxckpt.io.pool import HostPool
from jaxckpt.io.spans import read_span
from jaxckpt.io.store import join, read_file, write_file
from jaxckpt.io.world import World
from jaxckpt.layout.flatten import flatten
from jaxckpt.layout.leaves import Described, describe_leaf
from jaxckpt.layout.partition import host_partition
from jaxckpt.layout.placement import Place
from jaxckpt.layout.save_plan import ArrayLeaf, PlannedChunk, SavePlan, plan_save
from jaxckpt.opened import check_files

INLINE_BYTES = 4096
"""Values up to this size lie in the B+tree itself, so that all small leaves are one read."""
_FIXED_BYTES = 4 << 20  # plan, index and threads of a save; measured at under 3 MiB
_TOGETHER_BYTES = 256 << 10  # below this a copy costs less than handing it to a thread
_Copy = Callable[[], None]
_EMPTY_KEY = b".jaxckpt"


@dataclass(frozen=True, slots=True)
class SavingLeaf:
    """A leaf of the state, classified and named."""

    spec: LeafSpec
    described: Described


@dataclass(frozen=True, slots=True)
class StatePlan:
    """All that a save does, decided before any byte is written."""

    root: TreeNode
    leaves: list[SavingLeaf]
    plan: SavePlan
    nbytes: int


@calm
def plan_state(state: Any, options: Options) -> StatePlan:
    """Names and classifies the leaves of a state and plans its chunks.

    Raises:
        UnsupportedLeafError: a leaf can not be saved.
    """
    flat = flatten(state)
    described = [describe_leaf(path, value) for path, value in flat.leaves]
    arrays: list[ArrayLeaf] = []
    for number, leaf in enumerate(described):
        if leaf.source is not None:
            part = leaf.partition or host_partition(())
            arrays.append(ArrayLeaf(number, part, leaf.dtype))
    plan = plan_save(arrays, options.chunk_bytes)
    leaves: list[SavingLeaf] = []
    for number, ((path, _), leaf) in enumerate(zip(flat.leaves, described, strict=True)):
        name = ".".join(text for _, text in path)
        stored = leaf.source.shape if leaf.source is not None else ()
        spec = LeafSpec(
            name,
            path,
            leaf.kind,
            leaf.shape,
            leaf.dtype,
            tuple(stored),
            plan.chunk_shapes.get(number, ()),
            leaf.impl,
            leaf.value,
            leaf.sharding,
        )
        leaves.append(SavingLeaf(spec, leaf))
    return StatePlan(flat.root, leaves, plan, plan.nbytes)


class StagedItem:
    """A state that is copied out, its writes under way.

    Attributes:
        nbytes: raw bytes of the arrays of this process.
    """

    def __init__(
        self, world: World, options: Options, state: StatePlan, item_dir: str, files: DataFiles
    ) -> None:
        self._world, self._options, self._state = world, options, state
        self._dir, self._files = item_dir, files
        self._entries: list[Entry] = []
        self._writes: list[Future[None]] = []
        plan = state.plan
        self._crcs = {n: np.zeros(plan.chunk_count(n), "<u4") for n in plan.chunk_shapes}
        self._padding = threading.Lock()  # one padded copy of a chunk at a time
        self._job: Job | None = None
        self.nbytes = 0

    def write(self) -> None:
        """Blocks until the item is whole and durable; its name in the parent is not, yet.

        Every process of the job must call this.
        """
        assert self._job is not None
        try:
            self._job.join(self._writes)
            sizes = self._files.sync()
        except BaseException:
            self._files.abandon()
            raise
        own = self._write_database(sizes)
        announced = self._world.coordinator.exchange(
            f"written {self._dir}", json.dumps(own).encode()
        )
        if self._world.coordinator.process_index == 0:
            self._write_root(_merge_announcements(announced))

    @calm
    def _write_database(self, sizes: dict[str, int]) -> dict[str, list[int | None]]:
        """The process's own index and manifest; returns size and crc of each of its files."""
        world, process = self._world, process_dir(self._world.coordinator.process_index)
        home = join(self._dir, process)
        if not self._entries:
            self._entries.append((_EMPTY_KEY, b"1"))
        self._entries.sort(key=lambda e: e[0])
        blob, root = build_tree(self._entries, DataFile("", INDEX_FILE), 0)
        manifest = encode_manifest(world.random_bytes(16), root, world.wall_ns())
        write_file(world.store, join(home, INDEX_FILE), blob)
        write_file(world.store, join(home, MANIFEST_NAME), manifest)
        world.store.sync_dir(join(home, "d"))
        world.store.sync_dir(home)
        own: dict[str, list[int | None]] = {
            f"{process}/{name}": [size, None] for name, size in sizes.items()
        }
        own[f"{process}/{INDEX_FILE}"] = [len(blob), None]
        own[f"{process}/{MANIFEST_NAME}"] = [len(manifest), None]
        return own

    @calm
    def _write_root(self, files: dict[str, FileRecord]) -> None:
        """The primary's part: root manifest, orbax's files and the sidecar."""
        store, specs = self._world.store, [leaf.spec for leaf in self._state.leaves]
        extra = {
            MANIFEST_NAME: self._root_manifest(),
            orbaxmeta.TREE_NAME: orbaxmeta.encode_tree(specs),
            orbaxmeta.SHARDING_NAME: orbaxmeta.encode_shardings(specs),
            f"{orbaxmeta.ARRAYS_DIR}/process_0": orbaxmeta.encode_array_metadatas(specs),
            orbaxmeta.STRINGS_NAME: orbaxmeta.encode_strings(specs),
        }
        store.make_dir(join(self._dir, orbaxmeta.ARRAYS_DIR))
        records = dict(files)
        for name, data in extra.items():
            write_file(store, join(self._dir, name), data)
            records[name] = FileRecord(len(data), crc32c.crc32c(data))
        store.sync_dir(join(self._dir, orbaxmeta.ARRAYS_DIR))
        if self._options.checksum:
            specs = [
                replace(spec, crcs=self._crcs[n].tobytes())
                if n in self._crcs and spec.kind in ARRAY_KINDS
                else spec
                for n, spec in enumerate(specs)
            ]
        sidecar = Sidecar(
            self._state.root,
            tuple(specs),
            records,
            self._world.coordinator.process_count,
            self._options.checksum,
            self._options.compression,
        )
        check_files(store, self._dir, sidecar)
        write_file(store, join(self._dir, SIDECAR_NAME), encode_sidecar(sidecar))
        store.sync_dir(self._dir)

    def _root_manifest(self) -> bytes:
        """Refers to the nodes of the process's database, after reading them back and checking.

        With one process its tree is the whole tree, so the root manifest points at it through
        the directory as base path and no node is written twice.
        """
        world, home = self._world, process_dir(0)
        own = join(self._dir, home)
        path = join(own, MANIFEST_NAME)
        try:
            root = decode_manifest(read_file(world.store, path, 1 << 20), path)
            index = read_tree(root, lambda span: read_span(world.store, own, span))
        except FormatError as error:
            raise DamagedCheckpointError(path, f"just written and read back: {error}") from error
        if len(index.keys) != len(self._entries) or root.location is None:
            raise DamagedCheckpointError(path, "just written and read back: keys are missing")
        place = root.location
        location = ValueRef(DataFile(home + "/", place.file.name), place.offset, place.length)
        moved = Root(root.height, location, root.num_keys, root.tree_bytes, root.indirect_bytes)
        return encode_manifest(world.random_bytes(16), moved, world.wall_ns())

    # -- staging ---------------------------------------------------------------------------------

    @calm
    def copy_out(self, job: Job) -> None:
        """Copies every chunk of this process to its place; returns once nothing of the state is
        needed any more.
        """
        self._job = job
        tasks: list[Future[None]] = []
        try:
            for copies in self._in_order():
                tasks.append(job.copy(functools.partial(_run_all, copies)))  # noqa: PERF401
            if self._world.coordinator.process_index == 0:
                self._add_metadata()
        except BaseException as error:  # noqa: BLE001  (raised by join, once no copy is running)
            job.fail(error)
        try:
            job.join(tasks)
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
        for chunk in self._state.plan.owned_by(self._world.coordinator.process_index):
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
        source, device = leaf.described.source, chunk.device
        inside = chunk.box.slices_within(chunk.region)
        crcs, number = self._crcs[chunk.leaf], chunk.number
        full = leaf.spec.chunk_shape
        padding = self._padding if chunk.box.shape != full else contextlib.nullcontext()
        if self._options.compression:

            def compress() -> None:
                with padding:
                    value = _padded(host_region(source, device)[inside], full)
                    place, crcs[number] = self._files.put_compressed(value)
                self._entries.append((key, _ref(place)))

            return compress
        if chunk.nbytes <= INLINE_BYTES:
            data = _padded(host_region(source, device)[inside], full).tobytes()
            if self._options.checksum:
                crcs[number] = crc32c.crc32c(data)
                data += crcs[number].tobytes()
            self._entries.append((key, data))
            return None
        place = self._files.place(chunk.nbytes)
        self._entries.append((key, _ref(place)))

        def copy() -> None:
            if place.begins_file and place.file:
                self._files.seal(place.file - 1)
            with padding:
                value = _padded(host_region(source, device)[inside], full)
                crcs[number] = self._files.put(place, value)

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
    state: StatePlan,
    item_dir: str,
    *,
    may_grow: bool = True,
) -> StagedItem:
    """Copies a planned state out of its arrays; the caller may change or donate them afterwards.

    Args:
        item_dir: exists and is empty but for what other processes write.
        may_grow: see ``HostPool.acquire``; False for a caller that waits for the end anyway.
    """
    home = join(item_dir, process_dir(world.coordinator.process_index))
    world.store.make_dir(home)
    world.store.make_dir(join(home, "d"))
    process = world.coordinator.process_index
    pool.set_headroom(_FIXED_BYTES + _temporary_bytes(state, options, process))
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
    staged = StagedItem(world, options, state, item_dir, files)
    staged.copy_out(job)
    return staged


def _run_all(copies: list[_Copy]) -> None:
    for copy in copies:
        copy()


def _padded(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A chunk as it is stored: whole, also where the array ends inside."""
    if value.shape == shape:
        return value
    return np.pad(value, [(0, n - m) for n, m in zip(shape, value.shape, strict=True)])


def _temporary_bytes(state: StatePlan, options: Options, process: int) -> int:
    """What temporary copies of chunks take: one compressed or made contiguous, one padded."""
    copies = 2 if options.compression else 1
    needed = padded = 0
    for chunk in state.plan.owned_by(process):
        source = state.leaves[chunk.leaf].described.source
        whole = chunk.box == chunk.region
        row_wise = whole or chunk.box.shape[1:] == chunk.region.shape[1:]
        fortran = isinstance(source, np.ndarray) and not source.flags.c_contiguous
        if options.compression or not row_wise or fortran:
            needed = max(needed, copies * chunk.nbytes)
        if chunk.box.shape != state.plan.chunk_shapes[chunk.leaf]:
            padded = max(padded, chunk.nbytes)
    return needed + padded


def _ref(place: Place) -> ValueRef:
    return ValueRef(DataFile("", data_file(place.file)), place.offset, place.length)


def _merge_announcements(announced: list[bytes]) -> dict[str, FileRecord]:
    files: dict[str, FileRecord] = {}
    for payload in announced:
        for name, (size, crc) in json.loads(payload).items():
            files[name] = FileRecord(size, crc)
    return files
