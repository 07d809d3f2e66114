"""The data files of one process, written piece by piece while values are copied into them.

For a save that does not fit into the pool; one that does goes through `held.py`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import crc32c
import numpy as np
from numpy.typing import NDArray

from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.io.engine import Job
from jaxckpt.io.extents import ExtentWriter, round_up
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Writer
from jaxckpt.layout.placement import Place

_STRIDE_BYTES = 256 << 10  # copied and then summed while it is in the cache


class StreamedFiles:
    """Takes values from many threads, which begin them in the order of their places.

    Args:
        ends: where the last value of each file ends; grows as places are handed out.
        create: makes the file of a number.
        stopped: says that the save failed.
        checksum: append each value's crc32c.
    """

    def __init__(
        self,
        pool: HostPool,
        job: Job,
        ends: Sequence[int],
        create: Callable[[int], Writer],
        stopped: Callable[[], bool],
        *,
        checksum: bool,
    ) -> None:
        self._pool, self._job, self._ends, self._create = pool, job, ends, create
        self._checksum, self._stopped = checksum, stopped
        self._files: dict[int, ExtentWriter] = {}
        self._lock = threading.Lock()

    def put(self, place: Place, data: NDArray[np.uint8]) -> int:
        """Copies a value's bytes to a place.

        Returns:
            Their crc32c; 0 without checksums.
        """
        if place.begins_file and place.file:
            # Before the copies of the next file: the last window must not keep a block to the end.
            self._seal(place.file - 1)
        extents = self._extents(place.file)
        if place.offset > place.gap_start:
            extents.fill_zeros(place.gap_start, place.offset - place.gap_start)
        crc = position = 0
        for window in extents.pieces(place.offset, data.size):
            for start in range(0, window.size, _STRIDE_BYTES):
                part = window[start : start + _STRIDE_BYTES]
                part[:] = data[position : position + part.size]
                if self._checksum:
                    crc = crc32c.crc32c(part.data, crc)
                position += part.size
        if self._checksum:
            footer = np.frombuffer(struct.pack("<I", crc), np.uint8)
            done = 0
            for window in extents.pieces(place.offset + data.size, CRC_BYTES):
                window[:] = footer[done : done + window.size]
                done += window.size
        return crc

    def flush(self) -> list[Future[None]]:
        """After the last copy: seals the last file and returns all writes, to be waited for."""
        if self._ends:
            self._seal(len(self._ends) - 1)
        for number, extents in self._files.items():
            if extents.unfinished:  # bytes that nobody would write: never to be committed
                raise RuntimeError(f"file {number} has {extents.unfinished} unfilled windows")
        return [write for extents in self._files.values() for write in extents.writes]

    def lengths(self) -> dict[int, int]:
        """The length of each file."""
        return {number: round_up(self._ends[number]) for number in self._files}

    def give_back(self) -> None:
        """Waits for the writes under way and returns all blocks; no copy may be running."""
        for extents in self._files.values():
            extents.abandon()

    def _extents(self, number: int) -> ExtentWriter:
        with self._lock:
            if number not in self._files:
                job = self._job
                writer = self._create(number)
                extents = ExtentWriter(writer, self._pool, job.write, self._stopped)
                self._files[number] = extents
            return self._files[number]

    def _seal(self, number: int) -> None:
        """Pads a file to a block border; no further value will be placed in it."""
        extents, end = self._extents(number), self._ends[number]
        extents.fill_zeros(end, round_up(end) - end)
        extents.finish(round_up(end))
