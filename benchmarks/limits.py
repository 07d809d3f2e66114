"""What the disk itself can do: plain direct I/O, one thread, in order."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import RESTORE, SAVE, Case
from benchmarks.disk import sync

_BLOCK_BYTES = 16 << 20
_RING_BYTES = 8 * _BLOCK_BYTES
_PLAINLY = "O_DIRECT, blocks of 16 MiB in order, one thread, fsync"
LIMIT, LIMIT_FRESH, LIMIT_HUGE = "limit", "limit-fresh", "limit-fresh-huge"
LIMITS = (LIMIT, LIMIT_FRESH, LIMIT_HUGE)


def limits(nbytes: int) -> list[Case]:
    """The limits of a state of so many bytes.

    For a restore into memory that was touched before, which is what the disk can do, and into
    fresh memory, which is what any restore needs for its result. A virtual machine may pay far
    more for fresh huge pages than for small ones, so there is one figure for each.
    """
    source, touched = _memory(_RING_BYTES, huge=True), _memory(_RING_BYTES, huge=True)
    source[:] = np.frombuffer(np.random.default_rng(0).bytes(_RING_BYTES), np.uint8)
    touched[:] = 0

    def verify(memory: NDArray[np.uint8]) -> None:
        count = min(nbytes, _RING_BYTES)
        if not np.array_equal(memory[:count], source[:count]):
            raise AssertionError("the limit read something else than it wrote")

    def case(
        name: str,
        label: str,
        memory_kind: str,
        memory: Callable[[], NDArray[np.uint8]],
        *operations: str,
    ) -> Case:
        return Case(
            name=name,
            label=label,
            settings=f"{_PLAINLY}, {memory_kind}",
            save=lambda path: _write(path, nbytes, source),
            restore=lambda path: _read(path, nbytes, memory()),
            verify=verify,
            operations=operations,
        )

    return [
        case(LIMIT, "disk limit", "touched memory", lambda: touched, SAVE, RESTORE),
        case(
            LIMIT_FRESH,
            "limit, fresh memory",
            "memory mapped for each read",
            lambda: _memory(nbytes, huge=False),
            RESTORE,
        ),
        case(
            LIMIT_HUGE,
            "limit, fresh huge pages",
            "memory mapped for each read with MADV_HUGEPAGE",
            lambda: _memory(nbytes, huge=True),
            RESTORE,
        ),
    ]


def _memory(nbytes: int, *, huge: bool) -> NDArray[np.uint8]:
    """Page-aligned memory that nobody touched."""
    memory = mmap.mmap(-1, nbytes)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _write(path: str, nbytes: int, ring: NDArray[np.uint8]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    try:
        for offset in range(0, nbytes, _BLOCK_BYTES):
            block = _block(ring, offset, nbytes)
            if os.pwrite(handle, block, offset) != len(block):
                raise OSError("the disk took less than a block")
        os.fsync(handle)
    finally:
        os.close(handle)
    sync(os.path.dirname(path))


def _read(path: str, nbytes: int, ring: NDArray[np.uint8]) -> NDArray[np.uint8]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        for offset in range(0, nbytes, _BLOCK_BYTES):
            block = _block(ring, offset, nbytes)
            if os.preadv(handle, [block], offset) != len(block):
                raise OSError("the disk gave less than a block")
    finally:
        os.close(handle)
    return ring


def _block(ring: NDArray[np.uint8], offset: int, nbytes: int) -> NDArray[np.uint8]:
    """The part of the ring for an offset of the file; the last may be shorter."""
    start = offset % len(ring)
    return ring[start : start + min(_BLOCK_BYTES, nbytes - offset)]
