"""Copying a state out of its arrays, into leased memory: what a training loop waits for.

A save that fits into the pool is copied at memory speed and nothing else; its checksums are
computed when its turn to be written has come (`io/held.py`). One that does not fit is copied,
summed and written piece by piece (`io/datafiles.py`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt.device.host_view import host_chunk, look_at, prepare_chunk
from jaxckpt.device.transfer import Transfers
from jaxckpt.errors import DonatedTooEarlyError
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import Entry
from jaxckpt.format.names import data_file
from jaxckpt.format.zarr import CRC_BYTES, ZSTD_LEVEL
from jaxckpt.io.datafiles import StreamedFiles
from jaxckpt.io.engine import Job
from jaxckpt.io.held import HeldFiles
from jaxckpt.io.pool import HostPool
from jaxckpt.io.progress import CountedWriter
from jaxckpt.io.store import Store, Writer, join
from jaxckpt.io.waiting import AbandonedError
from jaxckpt.layout.placement import Place, Placer
from jaxckpt.layout.write_plan import INLINE_BYTES, SMALL_BYTES, PlannedWrite
from jaxckpt.planning import StatePlan, transfer_limit


class Staging:
    """A state on its way from arrays to files.

    `copy_out` and `open` may come in either order where all of it fits; else `open` comes first.
    Then `finish`, or `abandon` at any time when neither is running.

    Args:
        whole: all of it fits into the pool.
        wrote: told of the bytes of each write.
        expired: an error to end with, once it is too late.

    Attributes:
        crcs: of this process's chunks, by their row in the plan; complete after `finish`.
    """

    def __init__(
        self,
        options: Options,
        pool: HostPool,
        job: Job,
        state: StatePlan,
        *,
        whole: bool,
        wrote: Callable[[int], None],
        expired: Callable[[], Exception | None],
    ) -> None:
        self._expired = expired
        self.crcs = np.zeros(len(state.plan.owners), np.uint32)
        self._checksum, self._compressed = options.checksum, options.compression is not None
        self._direct = options.direct_io != "off"
        self._plan, self._shapes = state.writes, state.plan.chunk_shapes
        self._names = [leaf.spec.name for leaf in state.leaves]
        self._sources: list[Any] = state.sources
        self._job, self._whole, self._wrote = job, whole, wrote
        self._inside: list[Entry] = []  # values of the index
        # By row, until they are copied.
        self._views: dict[int, np.ndarray | Callable[[], np.ndarray]] = {}
        self._taken: set[int] | None = None  # rows that `take_hold` has copied
        self._looked = False  # whether it has taken views of all others
        self._packed: dict[int, Place] = {}  # places of compressed values by row
        self._placer = Placer(options.data_file_bytes)
        limit = transfer_limit(options.memory_budget_bytes)
        self._transfers = Transfers(limit, self._stopped)
        self._one_copy = threading.Lock()  # one temporary copy of a chunk at a time
        self._where: tuple[Store, str] | None = None
        self._writers: dict[int, Writer] = {}
        if whole:
            ends = () if self._compressed else state.writes.ends
            self._held = HeldFiles(pool, ends, self._stopped, checksum=self._checksum)
        else:
            self._streamed = StreamedFiles(
                pool,
                job,
                self._placer.ends if self._compressed else state.writes.ends,
                self._create,
                self._stopped,
                checksum=self._checksum,
            )

    def open(self, store: Store, home: str) -> None:
        """Says where this process's files go; ``home/d`` exists."""
        self._where = store, home

    def take_hold(self, but: int, *, views: bool) -> None:
        """Takes the memory and copies what lies in numpy arrays; `copy_out` must follow, from any
        thread. Only where all of it fits.

        Args:
            but: a leaf that is copied all the same.
            views: also take hold of what lies on CPU devices, without copying it: the caller may
                change and donate the state at once. Nothing may come over a bus then.
        """
        self._taken, self._looked = set(), views
        try:
            self._held.acquire()
            self._take_hold(but, views=views)
        except BaseException:
            self.abandon()
            raise
        finally:
            if views:
                self._sources = [None] * len(self._sources)

    @calm
    def _take_hold(self, but: int, *, views: bool) -> None:
        assert self._taken is not None
        for write in self._plan.writes:
            leaf, small = write.chunk.leaf, write.chunk.nbytes <= INLINE_BYTES
            of_host = write.chunk.device == -1
            if of_host or (views and (leaf == but or (small and write.bare))):
                self._copy_group((write,))
                self._taken.add(write.row)
            elif views and write.bare:
                self._views[write.row] = np.asarray(self._sources[leaf])
            elif views:
                self._views[write.row] = look_at(self._sources[leaf], write.chunk)

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
            if not self._looked:
                self._prepare()
            if self._whole and self._taken is None:
                self._held.acquire()
            self._copy_groups(tasks)
        except BaseException as error:  # noqa: BLE001  (raised by join, once no copy is running)
            job.fail(error)
        try:
            job.join(tasks, look)
            if job.stopped():
                raise AbandonedError  # nothing must look whole that was cut short
        except BaseException:
            self.abandon()
            raise
        finally:
            self._sources = [None] * len(self._sources)

    def finish(self, look: Callable[[], None]) -> dict[str, int]:
        """Blocks until all files are durable; their sizes by relative path.

        Args:
            look: as of `copy_out`.
        """
        try:
            lengths = self._write(look)
            if self._job.stopped():
                raise AbandonedError  # writes that were left out must not pass for made
            for writer in self._writers.values():
                writer.sync()
                writer.close()
        except BaseException:
            self.abandon()
            raise
        return {data_file(number): length for number, length in lengths.items()}

    def stop(self, error: BaseException) -> None:
        """Ends copies and writes under way; whoever waits for them raises the error."""
        self._job.fail(error)

    def abandon(self) -> None:
        """Gives all memory back and closes the files."""
        self._job.fail(AbandonedError())
        self._views.clear()
        if self._whole:
            self._held.give_back()
        else:
            self._streamed.give_back()
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def values(self) -> Iterator[tuple[Place, int]]:
        """Place in the data files and row in the plan of all that lies there, in order."""
        if self._compressed:
            placed = ((place, row) for row, place in self._packed.items())
            yield from sorted(placed, key=lambda value: (value[0].file, value[0].offset))
            return
        for write in self._plan.writes:
            if write.place is not None:
                yield write.place, write.row

    def entries(self) -> list[Entry]:
        """The database's, after the copying."""
        entries = self._inside
        for write in self._plan.writes:
            place = self._packed.get(write.row) if self._compressed else write.place
            if place is not None:
                file = DataFile("", data_file(place.file))
                entries.append((write.key, ValueRef(file, place.offset, place.length)))
        return entries

    def _write(self, look: Callable[[], None]) -> dict[int, int]:
        if not self._whole:
            self._job.join(self._streamed.flush(), look)
            return self._streamed.lengths()

        def check() -> None:
            self._job.check()

        by_file: dict[int, list[tuple[Place, int]]] = {}
        for place, row in self.values():
            by_file.setdefault(place.file, []).append((place, row))
        lengths: dict[int, int] = {}
        for file, values in by_file.items():
            look()
            writer = self._create(file)
            lengths[file] = self._held.write(
                file, values, self.crcs, writer, self._job.write, check
            )
        self._job.join(self._held.pending, look)
        return lengths

    def _stopped(self) -> bool:
        error = self._expired()
        if error is not None:
            self._job.fail(error)
        return self._job.stopped()

    def _create(self, number: int) -> Writer:
        assert self._where is not None
        store, home = self._where
        made = store.create(join(home, data_file(number)), direct=self._direct)
        writer = self._writers[number] = CountedWriter(made, self._wrote)
        return writer

    def _transfer_group(self, group: tuple[PlannedWrite, ...], tasks: list[Future[None]]) -> None:
        """Begins the transfers here, in the order of the places, and copies on a thread."""
        chunks = [(self._sources[write.chunk.leaf], write.chunk) for write in group]
        try:
            arriving = self._transfers.begin(chunks)
        except Exception as error:
            self._raise_if_donated(error, group)
            raise

        def copy() -> None:
            try:
                while arriving:
                    self._copy(group[-len(arriving)], arriving.pop(0))
            finally:
                arriving.clear()
                self._transfers.done(chunks)

        tasks.append(self._job.copy(copy))

    def _prepare(self) -> None:
        for write in self._plan.cut:
            try:
                prepare_chunk(self._sources[write.chunk.leaf], write.chunk)
            except Exception as error:
                self._raise_if_donated(error, (write,))
                raise

    # -- copies, on several threads ----------------------------------------------------------------

    @calm
    def _copy_groups(self, tasks: list[Future[None]]) -> None:
        """Hands the large values to threads and copies the small ones here."""
        mine: list[tuple[PlannedWrite, ...]] = []
        taken = self._taken or ()
        for planned in self._plan.groups:
            group = tuple(write for write in planned if write.row not in taken)
            if not group:
                continue
            far = any(write.far for write in group)
            if self._whole and not far and group[0].chunk.nbytes < SMALL_BYTES:
                mine.append(group)
            elif far:
                self._transfer_group(group, tasks)
            else:
                tasks.append(self._job.copy(functools.partial(self._copy_group, group)))
        for group in mine:
            self._copy_group(group)
            self._job.check()

    def _copy_group(self, group: tuple[PlannedWrite, ...]) -> None:
        for write in group:
            source, view = self._sources[write.chunk.leaf], self._views.pop(write.row, None)
            try:
                if view is None and write.bare:
                    view = np.asarray(source)
                if isinstance(view, np.ndarray) and not self._compressed:
                    self._take(write, view)
                elif isinstance(view, np.ndarray):
                    self._copy(write, functools.partial(np.asarray, view))
                else:
                    look = view or functools.partial(host_chunk, source, write.chunk)
                    self._copy(write, look)
            except Exception as error:
                self._raise_if_donated(error, (write,))
                raise

    def _copy(self, write: PlannedWrite, value: Callable[[], np.ndarray]) -> None:
        if write.uneven or self._compressed:
            with self._one_copy:
                self._take(write, _padded(value(), self._shapes[write.chunk.leaf]))
        else:
            self._take(write, value())

    def _raise_if_donated(self, error: Exception, group: tuple[PlannedWrite, ...]) -> None:
        """Says which leaf it was that could not be read since it is gone.

        jax has more than one error for that: a donation may come between its own check and use.
        """
        for was_donated in (_is_gone, _is_going):
            for write in group:
                if was_donated(self._sources[write.chunk.leaf], error):
                    raise DonatedTooEarlyError(self._names[write.chunk.leaf]) from error

    def _take(self, write: PlannedWrite, value: np.ndarray) -> None:
        if self._compressed:
            self._put(write, *self._compress(write, value))
        elif write.place is None:
            data = value.tobytes()
            if self._checksum:
                crc = self.crcs[write.row] = crc32c.crc32c(data)
                data += crc.to_bytes(CRC_BYTES, "little")
            self._inside.append((write.key, data))
        elif value.flags.c_contiguous:
            self._put(write, write.place, value.reshape(-1).view(np.uint8))
        else:
            with self._one_copy:
                whole = np.ascontiguousarray(value)
                self._put(write, write.place, whole.reshape(-1).view(np.uint8))

    def _put(self, write: PlannedWrite, place: Place, data: NDArray[np.uint8]) -> None:
        if self._whole:
            if self._compressed:
                self._held.reserve(place)
            self._held.copy(place, data)
        else:
            self.crcs[write.row] = self._streamed.put(place, data)

    def _compress(self, write: PlannedWrite, value: np.ndarray) -> tuple[Place, NDArray[np.uint8]]:
        """A value's compressed bytes, and the next place for them; with the lock held."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        packed = zstandard.ZstdCompressor(ZSTD_LEVEL).compress(data)
        footer = CRC_BYTES if self._checksum else 0
        place = self._packed[write.row] = self._placer.place(len(packed) + footer)
        return place, np.frombuffer(packed, np.uint8)


def _is_gone(source: object, _: Exception) -> bool:
    """Whether an array's memory went to a step."""
    deleted = getattr(source, "is_deleted", None)
    return deleted is not None and deleted()


def _is_going(source: object, error: Exception) -> bool:
    """The same of a sharded array, which loses its shards one by one."""
    return hasattr(source, "is_deleted") and "deleted" in str(error)


def _padded(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A chunk at an uneven end, in the full shape in which Zarr stores it."""
    if value.shape == shape:
        return value
    whole = np.zeros(shape, value.dtype)
    whole[tuple(map(slice, value.shape))] = value
    return whole
