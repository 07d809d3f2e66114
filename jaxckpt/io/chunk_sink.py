"""Where stored values end: checked, decoded, and put where the result needs their elements."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from jaxckpt._types import Box, LeafSpec, Span
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.io.store import BLOCK_BYTES, join
from jaxckpt.layout.restore_plan import ChunkRead, Slot, chunk_bytes, contiguous_offset

_RUN_FROM_BYTES = 64 << 10


class ChunkSink:
    """Fills slots from the stored values of one item; may be used by several threads.

    Args:
        item: the item's directory.
        leaves: its leaves by number.
        slots, memory: each slot's region, and an array of exactly that shape and dtype.
        placed: told of bytes of the memory that are filled.
    """

    def __init__(
        self,
        item: str,
        leaves: Sequence[LeafSpec],
        slots: Sequence[Slot],
        memory: Sequence[np.ndarray],
        *,
        checksum: bool,
        compression: str | None,
        placed: Callable[[int], None],
    ) -> None:
        self.item, self._leaves, self.placed = item, leaves, placed
        self._slots, self._memory = slots, memory
        self.checksum, self._compression = checksum, compression

    def put(self, read: ChunkRead, value: NDArray[np.uint8], *, check: bool = True) -> None:
        """Takes a whole stored value.

        Args:
            check: hold it against its checksum; else another process has.
        """
        self._scatter(read, self._decode(read, value, check))

    def begin(self, read: ChunkRead, length: int) -> PartialValue:
        """Begins a stored value of ``length`` bytes that comes in parts."""
        return PartialValue(self, read, length)

    def run_memory(self, read: ChunkRead) -> NDArray[np.uint8] | None:
        """The bytes of the one slot that a large chunk is a run of; None where it is not."""
        nbytes = chunk_bytes(self._leaves[read.leaf])
        if (
            isinstance(read.source, bytes)
            or self._compression
            or len(read.slots) != 1
            or nbytes < _RUN_FROM_BYTES
        ):
            return None
        slot = self._slots[read.slots[0]]
        inside = read.box.intersect(slot.box) == read.box and read.full_shape == read.box.shape
        offset = contiguous_offset(read.box, slot.box) if inside else None
        if offset is None or read.source.offset % BLOCK_BYTES:
            return None
        array = self._memory[read.slots[0]]
        start = offset * array.itemsize
        return array.reshape(-1).view(np.uint8)[start : start + nbytes]

    def _decode(self, read: ChunkRead, value: NDArray[np.uint8], check: bool) -> np.ndarray:
        """Checks a stored value and returns its elements in the shape of a whole chunk."""
        spec = self._leaves[read.leaf]
        self.check_length(read, value.size)
        if self.checksum:
            value, footer = value[:-CRC_BYTES], value[-CRC_BYTES:]
            if check:
                self.check_crc(read, crc32c.crc32c(value.data), footer.tobytes())
        if self._compression:
            value = self._decompress(read, value)
        return value.view(DTYPES[spec.dtype]).reshape(read.full_shape)

    def _decompress(self, read: ChunkRead, value: NDArray[np.uint8]) -> NDArray[np.uint8]:
        nbytes = chunk_bytes(self._leaves[read.leaf])
        try:
            if zstandard.frame_content_size(value.data) != nbytes:
                raise zstandard.ZstdError(f"it does not unpack to {nbytes} bytes")
            plain = zstandard.ZstdDecompressor().decompress(value.data, max_output_size=nbytes)
        except zstandard.ZstdError as error:
            raise self.error(read, f"a chunk is no valid zstd stream ({error})") from error
        return np.frombuffer(plain, np.uint8)

    def _scatter(self, read: ChunkRead, chunk: np.ndarray) -> None:
        first = self._memory[read.slots[0]]
        whole_slot = len(read.slots) == 1 and self._slots[read.slots[0]].box == read.box
        if whole_slot and chunk.shape == first.shape:
            first[...] = chunk
            self.placed(first.nbytes)
            return
        whole = Box(
            read.box.start,
            tuple(a + n for a, n in zip(read.box.start, read.full_shape, strict=True)),
        )
        for number in read.slots:
            slot = self._slots[number]
            part = read.box.intersect(slot.box)
            if part is not None:
                region = self._memory[number][part.slices_within(slot.box)]
                region[...] = chunk[part.slices_within(whole)]
                self.placed(region.nbytes)

    def check_length(self, read: ChunkRead, length: int) -> None:
        """Refuses a stored value that can not be the chunk."""
        want = chunk_bytes(self._leaves[read.leaf])
        if self._compression:
            want = length if CRC_BYTES < length <= want + want // 64 + 1024 else -1
        elif self.checksum:
            want += CRC_BYTES
        if length != want:
            raise self.error(read, f"a chunk has {length} bytes; {want} were expected")

    def check_read(self, read: ChunkRead, got: int, wanted: int) -> None:
        """Refuses a read that ended before the bytes that are claimed."""
        if got < wanted:
            length = read.source.length if isinstance(read.source, Span) else len(read.source)
            raise self.error(read, f"it ends after {max(0, got)} of {length} bytes")

    def check_crc(self, read: ChunkRead, computed: int, stored: bytes) -> None:
        """Refuses a chunk that is not what was written, or not the one that belongs there."""
        expected = struct.unpack("<I", stored)[0]
        if computed == expected and read.crc is not None and computed != read.crc:
            problem = f"chunk {list(read.box.start)} is another one than belongs there"
            raise self.error(read, problem)
        if computed != expected:
            raise self.error(
                read,
                f"chunk {list(read.box.start)} has crc32c {computed:08x}; {expected:08x} was "
                "stored",
            )

    def error(self, read: ChunkRead, problem: str) -> DamagedCheckpointError:
        """What is wrong with a stored value, with its leaf, file and offset."""
        name, source = self._leaves[read.leaf].name, read.source
        if isinstance(source, bytes):
            return DamagedCheckpointError(self.item, f"in the index, {problem}", leaf=name)
        path = join(self.item, source.file)
        return DamagedCheckpointError(path, problem, leaf=name, offset=source.offset)


class PartialValue:
    """A stored value that arrives in parts, in order, by one thread.

    One that is a run of the result's memory is copied straight to its place; any other is put
    together first.
    """

    def __init__(self, sink: ChunkSink, read: ChunkRead, length: int) -> None:
        self._sink, self._read, self._length = sink, read, length
        self._run = sink.run_memory(read)
        if self._run is not None:
            sink.check_length(read, length)
        self._whole = np.empty(length if self._run is None else 0, np.uint8)
        self._footer = b""
        self._crc = self._end = 0

    def add(self, part: NDArray[np.uint8]) -> bool:
        """Takes the next bytes; returns whether the value is whole, checked and in its place."""
        if self._run is None:
            self._whole[self._end : self._end + part.size] = part
        else:
            raw = part[: max(0, self._run.size - self._end)]
            self._run[self._end : self._end + raw.size] = raw
            self._sink.placed(raw.size)
            if self._sink.checksum:
                self._crc = crc32c.crc32c(raw.data, self._crc)
            self._footer += part[raw.size :].tobytes()
        self._end += part.size
        if self._end < self._length:
            return False
        if self._run is None:
            self._sink.put(self._read, self._whole)
        elif self._sink.checksum:
            self._sink.check_crc(self._read, self._crc, self._footer)
        return True
