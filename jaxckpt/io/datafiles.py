"""The data files of one process on their way: copying, checksums, writing, syncing."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from jaxckpt.format.names import data_file
from jaxckpt.format.zarr import CRC_BYTES, ZSTD_LEVEL
from jaxckpt.io.engine import Job
from jaxckpt.io.extents import ExtentWriter, Piece, round_up
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Store, Writer, join
from jaxckpt.layout.placement import Place, Placer

_STRIDE_BYTES = 256 << 10  # copied and then summed while it is in the cache


class Copied(NamedTuple):
    """A value whose bytes lie in the pool, not yet summed."""

    file: int
    pieces: tuple[Piece, ...]
    footer: tuple[Piece, ...]


class DataFiles:
    """Takes values from many threads; see the module.

    A value's checksum is computed with the copy (`put`), or later (`copy`, then `sum_up`): a save
    that fits into the pool has the caller wait for the copies alone.

    Args:
        ends: where the last value of each file ends; None if values get their places here, once
            they are compressed.
        data_file_bytes: for values that get their places here.
        checksum: append each value's crc32c.
        may_grow: see ``HostPool.acquire``.
        wrote: see ``ExtentWriter``.
    """

    def __init__(
        self,
        pool: HostPool,
        job: Job,
        ends: Sequence[int] | None,
        *,
        data_file_bytes: int,
        checksum: bool,
        may_grow: bool,
        wrote: Callable[[int], None],
    ) -> None:
        self._pool, self._job, self._wrote = pool, job, wrote
        self._checksum, self._may_grow = checksum, may_grow
        self._footer_bytes = CRC_BYTES if checksum else 0
        self._placer = Placer(data_file_bytes)
        self._ends = self._placer.ends if ends is None else ends
        self._extents: dict[int, ExtentWriter] = {}
        self._writers: dict[int, Writer] = {}
        self._where: tuple[Store, str, bool] | None = None
        self._lock = threading.Lock()
        self._temporary = threading.Lock()  # one temporary copy of a chunk at a time

    def open(self, store: Store, directory: str, *, direct: bool) -> None:
        """Says where the files go; from now on full windows are written.

        Args:
            directory: of the process; ``d`` inside it exists.
        """
        with self._lock:
            self._where = store, directory, direct
            collected = sorted(self._extents.items())
        for number, extents in collected:
            self._open_file(number, extents)

    def put(self, place: Place, value: np.ndarray) -> int:
        """Copies an array's elements, in C order, to a place, sums them, and is done with them.

        Returns:
            The crc32c of the bytes; 0 without checksums.
        """
        if value.flags.c_contiguous:
            return self._put_bytes(place, _as_bytes(value))
        with self._temporary:
            return self._put_bytes(place, _as_bytes(np.ascontiguousarray(value)))

    def copy(self, place: Place, value: np.ndarray) -> Copied:
        """Copies an array's elements, in C order, to a place. `sum_up` must follow."""
        if value.flags.c_contiguous:
            return self._copy_bytes(place, _as_bytes(value))
        with self._temporary:
            return self._copy_bytes(place, _as_bytes(np.ascontiguousarray(value)))

    def compress(self, value: np.ndarray) -> tuple[Place, NDArray[np.uint8]]:
        """Compresses an array's elements; the next place, and the bytes to go there.

        Called by one thread at a time.
        """
        packed = zstandard.ZstdCompressor(ZSTD_LEVEL).compress(
            _as_bytes(np.ascontiguousarray(value)).data
        )
        with self._lock:
            place = self._placer.place(len(packed) + self._footer_bytes)
        return place, np.frombuffer(packed, np.uint8)

    def sum_up(self, copied: Copied) -> int:
        """The crc32c of a value that was copied; its bytes are final then."""
        extents = self._extents[copied.file]
        crc = 0
        for piece in copied.pieces:
            if self._checksum:
                crc = crc32c.crc32c(piece.memory.data, crc)
            extents.fill(piece)
        _write_footer(copied.footer, crc)
        for piece in copied.footer:
            extents.fill(piece)
        return crc

    def _put_bytes(self, place: Place, data: NDArray[np.uint8]) -> int:
        extents = self._begin(place)
        crc = position = 0
        for piece in extents.pieces(place.offset, data.size):
            for start in range(0, piece.memory.size, _STRIDE_BYTES):
                part = piece.memory[start : start + _STRIDE_BYTES]
                part[:] = data[position : position + part.size]
                if self._checksum:
                    crc = crc32c.crc32c(part.data, crc)
                position += part.size
            extents.fill(piece)
        done = 0
        for piece in extents.pieces(place.offset + data.size, self._footer_bytes):
            _write_footer((piece,), crc, done)
            done += piece.memory.size
            extents.fill(piece)
        return crc

    def _copy_bytes(self, place: Place, data: NDArray[np.uint8]) -> Copied:
        extents = self._begin(place)
        pieces: list[Piece] = []
        position = 0
        for piece in extents.pieces(place.offset, data.size):
            piece.memory[:] = data[position : position + piece.memory.size]
            position += piece.memory.size
            pieces.append(piece)
        footer = tuple(extents.pieces(place.offset + data.size, self._footer_bytes))
        return Copied(place.file, tuple(pieces), footer)

    def _begin(self, place: Place) -> ExtentWriter:
        """Finishes the file before, if this value begins a new one, and clears the gap before it.

        Copies begin in the order of the places: the last window of a file must not keep a block
        until the end.
        """
        if place.begins_file and place.file:
            self._seal(place.file - 1)
        extents = self._file(place.file)
        if place.offset > place.gap_start:
            extents.fill_zeros(place.gap_start, place.offset - place.gap_start)
        return extents

    def _file(self, number: int) -> ExtentWriter:
        with self._lock:
            extents = self._extents.get(number)
            if extents is not None:
                return extents
            job = self._job
            extents = ExtentWriter(self._pool, job.write, job.stopped, self._may_grow, self._wrote)
            self._extents[number] = extents
        self._open_file(number, extents)
        return extents

    def _open_file(self, number: int, extents: ExtentWriter) -> None:
        with self._lock:
            if self._where is None or number in self._writers:
                return
            store, directory, direct = self._where
            writer = store.create(join(directory, data_file(number)), direct=direct)
            self._writers[number] = writer
        extents.open(writer)

    def _seal(self, number: int) -> None:
        """Pads a file to a block border; no further value will be placed in it."""
        extents, end = self._file(number), self._ends[number]
        extents.fill_zeros(end, round_up(end) - end)
        extents.finish(round_up(end))

    # -- the end -----------------------------------------------------------------------------------

    def seal_last(self) -> None:
        """To be called once, after the last copy."""
        if self._ends:
            self._seal(len(self._ends) - 1)

    def writes(self) -> list[Future[None]]:
        """All writes, to be waited for; after the last checksum."""
        for number, extents in self._extents.items():
            if extents.unfinished:  # bytes that nobody would write: never to be committed
                raise RuntimeError(f"{data_file(number)} has {extents.unfinished} unfilled windows")
        return [write for extents in self._extents.values() for write in extents.writes]

    def sync(self) -> dict[str, int]:
        """Makes all files durable and closes them; returns their sizes by relative path."""
        for writer in self._writers.values():
            writer.sync()
            writer.close()
        return {data_file(n): round_up(self._ends[n]) for n in self._writers}

    def abandon(self) -> None:
        """Gives all memory back and closes the files; no copy may be running."""
        for extents in self._extents.values():
            extents.abandon()
        for writer in self._writers.values():
            writer.close()
        self._extents, self._writers = {}, {}


def _write_footer(pieces: Sequence[Piece], crc: int, done: int = 0) -> None:
    footer = np.frombuffer(struct.pack("<I", crc), np.uint8)
    for piece in pieces:
        piece.memory[:] = footer[done : done + piece.memory.size]
        done += piece.memory.size


def _as_bytes(array: np.ndarray) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
