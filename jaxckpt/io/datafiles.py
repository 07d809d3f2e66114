"""The data files of one process while they are written: placing, copying, checksums, syncing."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import Future

import crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from jaxckpt.format.names import data_file
from jaxckpt.format.zarr import CRC_BYTES, ZSTD_LEVEL
from jaxckpt.io.engine import Job
from jaxckpt.io.extents import ExtentWriter, round_up
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Store, Writer, join
from jaxckpt.layout.placement import Place, Placer

_STRIDE_BYTES = 256 << 10  # copied and then summed while it is in the cache


class DataFiles:
    """Takes values from many threads; see the module.

    Args:
        directory: of the process; ``d`` inside it must exist before the first write.
        checksum: append each value's crc32c.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        pool: HostPool,
        job: Job,
        *,
        data_file_bytes: int,
        checksum: bool,
        direct: bool,
        may_grow: bool,
    ) -> None:
        self._store, self._directory, self._pool, self._job = store, directory, pool, job
        self._checksum, self._direct, self._may_grow = checksum, direct, may_grow
        self._placer = Placer(data_file_bytes)
        self._open: dict[int, tuple[Writer, ExtentWriter]] = {}
        self._lock = threading.Lock()
        self._temporary = threading.Lock()  # one temporary copy of a chunk at a time

    def place(self, nbytes: int) -> Place:
        """Takes the next place for a value of ``nbytes`` bytes, its checksum added."""
        with self._lock:
            return self._placer.place(nbytes + (CRC_BYTES if self._checksum else 0))

    def put(self, place: Place, value: np.ndarray) -> int:
        """Copies an array's elements, in C order, to a place.

        Returns:
            The crc32c of the bytes, once they are copied; 0 without checksums.
        """
        if value.flags.c_contiguous:
            return self._put_bytes(place, _as_bytes(value))
        with self._temporary:
            return self._put_bytes(place, _as_bytes(np.ascontiguousarray(value)))

    def put_compressed(self, value: np.ndarray) -> tuple[Place, int]:
        """Compresses an array's elements and puts them to the next place; see `put`."""
        with self._temporary:
            packed = zstandard.ZstdCompressor(ZSTD_LEVEL).compress(
                _as_bytes(np.ascontiguousarray(value)).data
            )
            place = self.place(len(packed))
            if place.begins_file and place.file:
                self.seal(place.file - 1)
            return place, self._put_bytes(place, np.frombuffer(packed, np.uint8))

    def _put_bytes(self, place: Place, data: NDArray[np.uint8]) -> int:
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

    def _extents(self, number: int) -> ExtentWriter:
        with self._lock:
            if number not in self._open:
                path = join(self._directory, data_file(number))
                writer = self._store.create(path, direct=self._direct)
                job = self._job
                extents = ExtentWriter(writer, self._pool, job.write, job.stopped, self._may_grow)
                self._open[number] = writer, extents
            return self._open[number][1]

    def seal(self, number: int) -> None:
        """Pads a file to a block border; no further value will be placed in it.

        Runs in the order of the places, before the copies of the next file: the last window of a
        file must not keep a block until the end.
        """
        extents = self._extents(number)
        with self._lock:
            end = self._placer.ends[number]
        extents.fill_zeros(end, round_up(end) - end)
        extents.finish(round_up(end))

    def flush(self) -> list[Future[None]]:
        """After the last copy: seals the last file and returns all writes, to be waited for."""
        if self._placer.ends:
            self.seal(len(self._placer.ends) - 1)
        for number, (_, extents) in self._open.items():
            if extents.unfinished:  # bytes that nobody would write: never to be committed
                raise RuntimeError(f"{data_file(number)} has {extents.unfinished} unfilled windows")
        return [write for _, extents in self._open.values() for write in extents.writes]

    def sync(self) -> dict[str, int]:
        """Makes all files durable and closes them; returns their sizes by relative path."""
        for writer, _ in self._open.values():
            writer.sync()
            writer.close()
        return {data_file(n): round_up(self._placer.ends[n]) for n in self._open}

    def abandon(self) -> None:
        """Gives all memory back and closes the files; no copy may be running."""
        for writer, extents in self._open.values():
            extents.abandon()
            writer.close()


def _as_bytes(array: np.ndarray) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
