"""Reads stored values from the data files, each value once, and hands them to a sink.

A large chunk that is one run of the memory it belongs to is read straight into it, past the page
cache, piece by piece; what does not fill a block, and the checksum behind it, goes to a scratch
block in the same system call. All other chunks pass through scratch memory that each thread keeps,
near ones in one read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import crc32c
import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import Span
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.extents import round_up
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES, Reader, Store, join
from jaxckpt.layout.restore_plan import ChunkRead, coalesce

_PIECE_BYTES = 8 << 20
Task = tuple[Callable[[], None], frozenset[int]]
"""Something to run on any thread, and the leaves that it brings bytes for."""


class ChunkReader:
    """Fills slots from one item.

    Args:
        sink: where the values go.
        direct: past the page cache, where the Store can.
    """

    def __init__(self, store: Store, sink: ChunkSink, *, direct: bool) -> None:
        self._store, self._sink, self._direct = store, sink, direct
        self._open: dict[str, Reader] = {}
        self._lock = threading.Lock()
        self._scratch = threading.local()

    def tasks(self, reads: Sequence[ChunkRead]) -> list[Task]:
        """Everything to do for some reads; values from the index are filled in at once."""
        tasks: list[Task] = []
        through_scratch: list[tuple[Span, int]] = []
        for number, read in enumerate(reads):
            source = read.source
            if isinstance(source, bytes):
                self._sink.put(read, np.frombuffer(source, np.uint8))
                continue
            run = self._sink.run_memory(read)
            if run is None:
                through_scratch.append((source, number))
            else:
                tasks.append((self._run_task(read, source, run), frozenset({read.leaf})))
        for span, members in coalesce(through_scratch):
            parts = [(reads[number], offset) for number, offset in members]
            leaves = frozenset(read.leaf for read, _ in parts)
            tasks.append((self._scratch_task(span, parts), leaves))
        return tasks

    def close(self) -> None:
        """Closes the data files; no task may be running."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def _run_task(
        self, read: ChunkRead, span: Span, memory: NDArray[np.uint8]
    ) -> Callable[[], None]:
        def run() -> None:
            self._sink.check_length(read, span.length)
            reader = self.reader(span.file)
            crc, footer = 0, b""
            for start in range(0, span.length, _PIECE_BYTES):
                size = min(_PIECE_BYTES, span.length - start)
                part = memory[start : start + size]
                straight = 0 if part.ctypes.data % BLOCK_BYTES else part.size
                straight -= straight % BLOCK_BYTES
                rest = size - straight
                scratch = self.scratch(round_up(rest))
                buffers = [b.data for b in (part[:straight], scratch) if b.size]
                got = reader.read_into(span.offset + start, buffers)
                self._sink.check_read(read, start + min(got, size), start + size)
                part[straight:] = scratch[: part.size - straight]
                footer += scratch[part.size - straight : rest].tobytes()
                if self._sink.checksum:
                    crc = crc32c.crc32c(part.data, crc)
                self._sink.placed(part.size)
            if self._sink.checksum:
                self._sink.check_crc(read, crc, footer)

        return run

    def _scratch_task(
        self, span: Span, parts: Sequence[tuple[ChunkRead, int]]
    ) -> Callable[[], None]:
        def run() -> None:
            first = span.offset % BLOCK_BYTES
            size = round_up(first + span.length)
            scratch = self.scratch(size)
            got = self.reader(span.file).read_into(span.offset - first, [scratch.data])
            self._sink.check_read(parts[0][0], got - first, span.length)
            for read, offset in parts:
                assert isinstance(read.source, Span)
                start = first + offset
                self._sink.put(read, scratch[start : start + read.source.length])

        return run

    def reader(self, file: str) -> Reader:
        """A data file of the item, opened once."""
        with self._lock:
            if file not in self._open:
                path = join(self._sink.item, file)
                try:
                    opened = self._store.open(path, direct=self._direct, beneath=self._sink.item)
                except FileNotFoundError as error:
                    raise DamagedCheckpointError(path, "the file is missing") from error
                self._open[file] = opened
            return self._open[file]

    def scratch(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-aligned memory that this thread keeps, of that size."""
        memory: NDArray[np.uint8] | None = getattr(self._scratch, "memory", None)
        if memory is None or memory.size < nbytes:
            memory = np.frombuffer(aligned_memory(max(BLOCK_BYTES, round_up(nbytes))), np.uint8)
            self._scratch.memory = memory
        return memory[:nbytes]
