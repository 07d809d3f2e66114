"""Reads what was just written from the disk again: before that no older step is removed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import crc32c
import numpy as np
from numpy.typing import NDArray

from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format.names import data_file
from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES, Reader, Store, join
from jaxckpt.layout.placement import Place

_READ_BYTES = 4 << 20  # as large as a disk likes, as small as a save can afford beside its blocks


def read_back(
    store: Store,
    home: str,
    values: Sequence[tuple[Place, int]],
    crcs: NDArray[np.uint32],
    checksum: bool,
    direct: bool,
) -> None:
    """Blocks until every data file of a process has been read and checked.

    Args:
        home: the process's directory.
        values: each with its row in ``crcs``.
        crcs: the crc32c of the values as they were in memory.
        checksum: without checksums all is read, and nothing compared.
        direct: past the page cache, as far as the Store can.

    Raises:
        DamagedCheckpointError: names file and offset.
        StorageError: the disk could not read it.
    """
    memory = np.frombuffer(aligned_memory(_READ_BYTES), np.uint8)
    by_file: dict[int, list[tuple[Place, int]]] = {}
    for place, row in values:
        by_file.setdefault(place.file, []).append((place, row))
    for file, inside in sorted(by_file.items()):
        path = join(home, data_file(file))
        reader = store.open(path, direct=direct)
        window = _Window(reader, memory)
        try:
            for place, row in sorted(inside, key=lambda v: v[0].offset):
                wanted = int(crcs[row]) if checksum else None
                problem = _check(window, place, wanted)
                if problem:
                    raise DamagedCheckpointError(path, problem, offset=place.offset)
        finally:
            reader.close()


class _Window:
    """A file read from front to back through one buffer; values near one another in one read."""

    def __init__(self, reader: Reader, memory: NDArray[np.uint8]) -> None:
        self._reader, self._memory = reader, memory
        self._begin = self._stop = 0

    def parts(self, offset: int, end: int) -> Iterable[NDArray[np.uint8]]:
        """The bytes from ``offset`` to ``end``, as far as the file has them."""
        while offset < end:
            if not self._begin <= offset < self._stop:
                self._begin = offset // BLOCK_BYTES * BLOCK_BYTES
                got = self._reader.read_into(self._begin, [self._memory.data])
                self._stop = self._begin + got
                if offset >= self._stop:
                    return
            stop = min(end, self._stop)
            yield self._memory[offset - self._begin : stop - self._begin]
            offset = stop


def _check(window: _Window, place: Place, wanted: int | None) -> str:
    """What is wrong with a stored value; "" for nothing."""
    left = place.length - (CRC_BYTES if wanted is not None else 0)
    got, crc, footer = 0, 0, b""
    for part in window.parts(place.offset, place.offset + place.length):
        data = part[:left]
        left, got = left - data.size, got + part.size
        if wanted is not None:
            crc = crc32c.crc32c(data.data, crc)
            footer += part[data.size :].tobytes()
    if got < place.length:
        return "the file is shorter than what was written"
    if wanted is not None and (crc != wanted or footer != struct.pack("<I", wanted)):
        return "what was read back is not what was written"
    return ""
