"""Reads stored values, checks them, and puts their elements where they belong.

A large chunk that is one run of the memory it belongs to is read straight into it, past the page
cache, piece by piece; what does not fill a block, and the checksum behind it, goes to a scratch
block in the same system call. All other chunks pass through scratch memory that each thread keeps,
near ones in one read.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence

import crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from jaxckpt._types import Box, LeafSpec, Span
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.io.extents import round_up
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES, Reader, Store, join
from jaxckpt.layout.restore_plan import (
    ChunkRead,
    Slot,
    chunk_bytes,
    coalesce,
    contiguous_offset,
)

_RUN_FROM_BYTES = 64 << 10
_PIECE_BYTES = 8 << 20
Task = tuple[Callable[[], None], frozenset[int]]
"""Something to run on any thread, and the leaves that it brings bytes for."""


class ChunkReader:
    """Fills slots from one item.

    Args:
        item: the item's directory.
        leaves: its leaves by number.
        slots, memory: each slot's region, and an array of exactly that shape and dtype.
    """

    def __init__(
        self,
        store: Store,
        item: str,
        leaves: Sequence[LeafSpec],
        slots: Sequence[Slot],
        memory: Sequence[np.ndarray],
        *,
        checksum: bool,
        compression: str | None,
        direct: bool,
    ) -> None:
        self._store, self._item, self._leaves = store, item, leaves
        self._slots, self._memory = slots, memory
        self._checksum, self._compression, self._direct = checksum, compression, direct
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
                self._scatter(read, self._decode(read, np.frombuffer(source, np.uint8), None))
                continue
            run = self._run_memory(read)
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

    def _run_memory(self, read: ChunkRead) -> NDArray[np.uint8] | None:
        """The bytes of the one slot that a large chunk is a run of; None where it is not."""
        nbytes = chunk_bytes(self._leaves[read.leaf])
        if self._compression or len(read.slots) != 1 or nbytes < _RUN_FROM_BYTES:
            return None
        assert isinstance(read.source, Span)
        slot = self._slots[read.slots[0]]
        inside = read.box.intersect(slot.box) == read.box and read.full_shape == read.box.shape
        offset = contiguous_offset(read.box, slot.box) if inside else None
        if offset is None or read.source.offset % BLOCK_BYTES:
            return None
        array = self._memory[read.slots[0]]
        start = offset * array.itemsize
        return array.reshape(-1).view(np.uint8)[start : start + nbytes]

    def _run_task(
        self, read: ChunkRead, span: Span, memory: NDArray[np.uint8]
    ) -> Callable[[], None]:
        def run() -> None:
            self._check_length(read, span, span.length)
            reader = self._reader(span.file)
            crc, footer = 0, b""
            for start in range(0, span.length, _PIECE_BYTES):
                size = min(_PIECE_BYTES, span.length - start)
                part = memory[start : start + size]
                straight = 0 if part.ctypes.data % BLOCK_BYTES else part.size
                straight -= straight % BLOCK_BYTES
                rest = size - straight
                scratch = self._scratch_memory(round_up(rest))[: round_up(rest)]
                buffers = [b.data for b in (part[:straight], scratch) if b.size]
                got = reader.read_into(span.offset + start, buffers)
                self._check_read(read, span, start + min(got, size), start + size)
                part[straight:] = scratch[: part.size - straight]
                footer += scratch[part.size - straight : rest].tobytes()
                if self._checksum:
                    crc = crc32c.crc32c(part.data, crc)
            if self._checksum:
                self._check_crc(read, span, crc, footer)

        return run

    def _scratch_task(
        self, span: Span, parts: Sequence[tuple[ChunkRead, int]]
    ) -> Callable[[], None]:
        def run() -> None:
            first = span.offset % BLOCK_BYTES
            size = round_up(first + span.length)
            scratch = self._scratch_memory(size)[:size]
            got = self._reader(span.file).read_into(span.offset - first, [scratch.data])
            self._check_read(parts[0][0], span, got - first, span.length)
            for read, offset in parts:
                assert isinstance(read.source, Span)
                start = first + offset
                value = scratch[start : start + read.source.length]
                self._scatter(read, self._decode(read, value, read.source))

        return run

    def _decode(self, read: ChunkRead, value: NDArray[np.uint8], span: Span | None) -> np.ndarray:
        """Checks a stored value and returns its elements in the shape of a whole chunk."""
        spec = self._leaves[read.leaf]
        self._check_length(read, span, value.size)
        if self._checksum:
            value, footer = value[:-CRC_BYTES], value[-CRC_BYTES:]
            self._check_crc(read, span, crc32c.crc32c(value.data), footer.tobytes())
        if self._compression:
            value = self._decompress(read, span, value)
        return value.view(DTYPES[spec.dtype]).reshape(read.full_shape)

    def _decompress(
        self, read: ChunkRead, span: Span | None, value: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        nbytes = chunk_bytes(self._leaves[read.leaf])
        try:
            if zstandard.frame_content_size(value.data) != nbytes:
                raise zstandard.ZstdError(f"it does not unpack to {nbytes} bytes")
            plain = zstandard.ZstdDecompressor().decompress(value.data, max_output_size=nbytes)
        except zstandard.ZstdError as error:
            raise self._error(read, span, f"a chunk is no valid zstd stream ({error})") from error
        return np.frombuffer(plain, np.uint8)

    def _scatter(self, read: ChunkRead, chunk: np.ndarray) -> None:
        first = self._memory[read.slots[0]]
        whole_slot = len(read.slots) == 1 and self._slots[read.slots[0]].box == read.box
        if whole_slot and chunk.shape == first.shape:
            first[...] = chunk
            return
        whole = Box(
            read.box.start,
            tuple(a + n for a, n in zip(read.box.start, read.full_shape, strict=True)),
        )
        for number in read.slots:
            slot = self._slots[number]
            part = read.box.intersect(slot.box)
            if part is not None:
                self._memory[number][part.slices_within(slot.box)] = chunk[
                    part.slices_within(whole)
                ]

    def _reader(self, file: str) -> Reader:
        with self._lock:
            if file not in self._open:
                path = join(self._item, file)
                try:
                    opened = self._store.open(path, direct=self._direct, beneath=self._item)
                except FileNotFoundError as error:
                    raise DamagedCheckpointError(path, "the file is missing") from error
                self._open[file] = opened
            return self._open[file]

    def _scratch_memory(self, nbytes: int) -> NDArray[np.uint8]:
        memory: NDArray[np.uint8] | None = getattr(self._scratch, "memory", None)
        if memory is None or memory.size < nbytes:
            memory = np.frombuffer(aligned_memory(max(BLOCK_BYTES, round_up(nbytes))), np.uint8)
            self._scratch.memory = memory
        return memory

    def _check_length(self, read: ChunkRead, span: Span | None, length: int) -> None:
        want = chunk_bytes(self._leaves[read.leaf])
        if self._compression:
            want = length if CRC_BYTES < length <= want + want // 64 + 1024 else -1
        elif self._checksum:
            want += CRC_BYTES
        if length != want:
            raise self._error(read, span, f"a chunk has {length} bytes; {want} were expected")

    def _check_read(self, read: ChunkRead, span: Span, got: int, wanted: int) -> None:
        if got < wanted:
            raise self._error(read, span, f"it ends after {max(0, got)} of {span.length} bytes")

    def _check_crc(self, read: ChunkRead, span: Span | None, computed: int, stored: bytes) -> None:
        expected = struct.unpack("<I", stored)[0]
        if computed == expected and read.crc is not None and computed != read.crc:
            problem = f"chunk {list(read.box.start)} is another one than belongs there"
            raise self._error(read, span, problem)
        if computed != expected:
            raise self._error(
                read,
                span,
                f"chunk {list(read.box.start)} has crc32c {computed:08x}; {expected:08x} was "
                "stored",
            )

    def _error(self, read: ChunkRead, span: Span | None, problem: str) -> DamagedCheckpointError:
        name = self._leaves[read.leaf].name
        if span is None:
            return DamagedCheckpointError(self._item, f"in the index, {problem}", leaf=name)
        path = join(self._item, span.file)
        return DamagedCheckpointError(path, problem, leaf=name, offset=span.offset)
