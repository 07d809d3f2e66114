"""The data files of one process held in memory as a whole, and written when their turn comes.

All blocks are taken before the first byte is copied, so a copy is a slice and nothing else: no
lock, no checksum, no gap. Those come with the writing, in one pass from front to back; a block goes
to the writer once the pass has left it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import crc32c
import numpy as np
from numpy.typing import NDArray

from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.io.extents import Submit, round_up
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Writer
from jaxckpt.io.waiting import AbandonedError, wait_for_all
from jaxckpt.layout.placement import Place

Block = NDArray[np.uint8]


class HeldFiles:
    """Memory laid out as the data files will be.

    Args:
        ends: where the last value of each file ends; empty where that is not known before.
        checksum: each value's crc32c goes behind it.
        stopped: says that the save failed; nothing is waited for and written any more.
    """

    def __init__(
        self, pool: HostPool, ends: Sequence[int], stopped: Callable[[], bool], *, checksum: bool
    ) -> None:
        self._pool, self._size, self._checksum = pool, pool.block_bytes, checksum
        self._stopped = stopped
        self._counts = [-(-end // self._size) for end in ends]
        self._blocks: list[list[Block | None]] = []
        self._pending: list[Future[None]] = []

    def acquire(self) -> None:
        """Takes all memory from the pool; blocks until it is there.

        Raises:
            AbandonedError: the save failed meanwhile.
        """
        for count in self._counts:
            blocks: list[Block | None] = []
            self._blocks.append(blocks)
            for _ in range(count):
                block = self._pool.acquire(self._stopped)
                if block is None:
                    raise AbandonedError
                blocks.append(block)

    def reserve(self, place: Place) -> None:
        """Takes the memory for a value whose place was not known before; one thread at a time.

        Raises:
            AbandonedError: the save failed meanwhile.
        """
        while len(self._blocks) <= place.file:
            self._blocks.append([])
        blocks = self._blocks[place.file]
        while len(blocks) * self._size < place.offset + place.length:
            block = self._pool.acquire(self._stopped)
            if block is None:
                raise AbandonedError
            blocks.append(block)

    def copy(self, place: Place, data: Block) -> None:
        """Copies a value's bytes; from any thread, no two for one place."""
        number, inside = divmod(place.offset, self._size)
        stop = inside + data.size
        if stop <= self._size:
            block = self._blocks[place.file][number]
            assert block is not None
            block[inside:stop] = data
            return
        done = 0
        for part in self._parts(place.file, place.offset, data.size):
            part[:] = data[done : done + part.size]
            done += part.size

    def write(
        self,
        file: int,
        values: Iterable[tuple[Place, int]],
        crcs: NDArray[np.uint32],
        writer: Writer,
        submit: Submit,
        look: Callable[[], None],
    ) -> int:
        """Sums the values of a file up and has its blocks written; `pending` has the writes.

        Args:
            values: in the order of their places, each with its row in ``crcs``.
            crcs: gets the checksums.
            look: called for each value; what it raises is raised.

        Returns:
            The length of the file.
        """
        written = end = 0
        for place, row in values:
            look()
            self._clear(file, end, place.offset)
            end = place.offset + place.length
            if self._checksum:
                self._sum(place, row, crcs)
            while (written + 1) * self._size <= end:
                self._hand_over(file, written, self._size, writer, submit)
                written += 1
        length = round_up(end)
        self._clear(file, end, length)
        while written * self._size < length:
            rest = min(self._size, length - written * self._size)
            self._hand_over(file, written, rest, writer, submit)
            written += 1
        return length

    @property
    def pending(self) -> list[Future[None]]:
        """The writes so far, to be waited for."""
        return list(self._pending)

    def give_back(self) -> None:
        """Waits for the writes under way and returns all blocks that are left."""
        wait_for_all(self._pending)
        for blocks in self._blocks:
            for number, block in enumerate(blocks):
                if block is not None:
                    blocks[number] = None
                    self._pool.give_back(block)

    def _sum(self, place: Place, row: int, crcs: NDArray[np.uint32]) -> None:
        crc, nbytes = 0, place.length - CRC_BYTES
        for part in self._parts(place.file, place.offset, nbytes):
            crc = crc32c.crc32c(part.data, crc)
        crcs[row] = crc
        footer, done = np.frombuffer(struct.pack("<I", crc), np.uint8), 0
        for part in self._parts(place.file, place.offset + nbytes, CRC_BYTES):
            part[:] = footer[done : done + part.size]
            done += part.size

    def _clear(self, file: int, begin: int, end: int) -> None:
        """Blocks are used again: a gap must not carry what they held before."""
        for part in self._parts(file, begin, end - begin):
            part.fill(0)

    def _parts(self, file: int, offset: int, nbytes: int) -> Iterator[Block]:
        end = offset + nbytes
        while offset < end:
            number, inside = divmod(offset, self._size)
            stop = min(self._size, inside + end - offset)
            block = self._blocks[file][number]
            assert block is not None
            yield block[inside:stop]
            offset += stop - inside

    def _hand_over(
        self, file: int, number: int, nbytes: int, writer: Writer, submit: Submit
    ) -> None:
        block = self._blocks[file][number]
        assert block is not None
        self._blocks[file][number] = None
        offset, pool, memory = number * self._size, self._pool, block

        def write() -> None:
            try:
                if not self._stopped():
                    writer.write_at(offset, memory[:nbytes].data)
            finally:
                pool.give_back(memory)

        self._pending.append(submit(write))
