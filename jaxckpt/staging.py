"""Copying a state out of its arrays, into leased memory: what a training loop waits for.

A save that fits into the pool is copied at memory speed and nothing else; its checksums are
computed when its turn to be written has come. One that does not fit is copied, summed and written
piece by piece, by the same copies.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future

import crc32c
import numpy as np

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt.device.host_view import host_chunk, prepare_chunk
from jaxckpt.errors import DonatedTooEarlyError
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import Entry
from jaxckpt.format.names import data_file
from jaxckpt.io.datafiles import Copied, DataFiles
from jaxckpt.io.engine import Job
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Store
from jaxckpt.io.waiting import AbandonedError
from jaxckpt.layout.placement import Place
from jaxckpt.layout.write_plan import PlannedWrite
from jaxckpt.planning import SavingLeaf, StatePlan


class Staging:
    """A state on its way from arrays to files.

    `copy_out` and `open` may come in either order where all of it fits; else `open` comes first.
    Then `finish`, or `abandon` at any time when neither is running.

    Args:
        whole: all of it fits into the pool.
        may_grow: see ``HostPool.acquire``.

    Attributes:
        entries: the database's, complete after `finish`.
        crcs: of this process's chunks, by their row in the plan.
        values: place in the data files and row in the plan of all that lies there.
    """

    def __init__(
        self,
        options: Options,
        pool: HostPool,
        job: Job,
        state: StatePlan,
        *,
        whole: bool,
        may_grow: bool,
    ) -> None:
        self.entries: list[Entry] = []
        self.crcs = np.zeros(len(state.plan.owners), np.uint32)
        self.values: list[tuple[Place, int]] = []
        self._checksum, self._compressed = options.checksum, options.compression is not None
        self._direct = options.direct_io != "off"
        self._writes, self._shapes = state.writes, state.plan.chunk_shapes
        self._leaves: list[SavingLeaf] = state.leaves
        self._job, self._whole = job, whole
        self._copied: dict[int, Copied] = {}
        self._padding = threading.Lock()  # one padded copy of a chunk at a time
        self._files = DataFiles(
            pool,
            job,
            None if self._compressed else state.writes.ends,
            data_file_bytes=options.data_file_bytes,
            checksum=options.checksum,
            may_grow=may_grow,
        )

    def open(self, store: Store, home: str) -> None:
        """Says where this process's files go; ``home/d`` exists."""
        self._files.open(store, home, direct=self._direct)

    @calm
    def copy_out(self, look: Callable[[], None]) -> None:
        """Copies every chunk of this process; afterwards nothing of the state is held any more.

        Args:
            look: called about once a second; what it raises ends the copying.

        Raises:
            DonatedTooEarlyError: an array was donated meanwhile.
        """
        tasks: list[Future[None]] = []
        job = self._job
        try:
            for write in self._writes.writes:
                prepare_chunk(self._leaves[write.chunk.leaf].described.source, write.chunk)
            for group in self._writes.groups:
                tasks.append(job.copy(functools.partial(self._copy_group, group)))  # noqa: PERF401
        except BaseException as error:  # noqa: BLE001  (raised by join, once no copy is running)
            job.fail(error)
        try:
            job.join(tasks, look)
            self._files.seal_last()
        except BaseException:
            self.abandon()
            raise
        finally:
            self._leaves = []

    def finish(self, look: Callable[[], None]) -> dict[str, int]:
        """Blocks until all files are durable; their sizes by relative path.

        Args:
            look: as of `copy_out`.
        """
        try:
            self._sum_up(look)
            self._job.join(self._files.writes(), look)
            return self._files.sync()
        except BaseException:
            self.abandon()
            raise

    def stop(self, error: BaseException) -> None:
        """Ends copies and writes under way; whoever waits for them raises the error."""
        self._job.fail(error)

    def abandon(self) -> None:
        """Gives all memory back and closes the files."""
        self._job.fail(AbandonedError())
        self._copied.clear()
        self._files.abandon()

    def _sum_up(self, look: Callable[[], None]) -> None:
        """In the order of the places, so that the windows are written in it."""
        for group in self._writes.groups:
            look()
            for write in group:
                copied = self._copied.pop(write.row, None)
                if copied is not None:
                    self._job.check()
                    self.crcs[write.row] = self._files.sum_up(copied)

    # -- copies, on several threads ----------------------------------------------------------------

    def _copy_group(self, group: tuple[PlannedWrite, ...]) -> None:
        for write in group:
            source = self._leaves[write.chunk.leaf].described.source
            try:
                self._copy(write, source)
            except RuntimeError as error:
                if not _was_donated(source, error):
                    raise
                name = self._leaves[write.chunk.leaf].spec.name
                raise DonatedTooEarlyError(name) from error

    def _copy(self, write: PlannedWrite, source: object) -> None:
        if write.uneven or self._compressed:
            with self._padding:
                value = _padded(host_chunk(source, write.chunk), self._shapes[write.chunk.leaf])
                if self._compressed:
                    place, value = self._files.compress(value)
                    self._take(write, place, value)
                else:
                    self._take(write, write.place, value)
        else:
            self._take(write, write.place, host_chunk(source, write.chunk))

    def _take(self, write: PlannedWrite, place: Place | None, value: np.ndarray) -> None:
        if place is None:
            data = value.tobytes()
            if self._checksum:
                self.crcs[write.row] = crc32c.crc32c(data)
                data += self.crcs[write.row].tobytes()
            self.entries.append((write.key, data))
            return
        ref = ValueRef(DataFile("", data_file(place.file)), place.offset, place.length)
        self.entries.append((write.key, ref))
        self.values.append((place, write.row))
        if self._whole:
            self._copied[write.row] = self._files.copy(place, value)
        else:
            self.crcs[write.row] = self._files.put(place, value)


def _was_donated(source: object, error: RuntimeError) -> bool:
    """Whether an array's memory went to a step; a sharded one loses its shards one by one."""
    deleted = getattr(source, "is_deleted", None)
    return deleted is not None and (deleted() or "deleted" in str(error))


def _padded(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A chunk at an uneven end, in the full shape in which Zarr stores it."""
    if value.shape == shape:
        return value
    whole = np.zeros(shape, value.dtype)
    whole[tuple(map(slice, value.shape))] = value
    return whole
