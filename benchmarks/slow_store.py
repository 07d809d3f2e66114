"""Storage with one rate for the whole job, as a shared file system or an object store has it."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxckpt.io.local import LocalStore
from jaxckpt.io.store import Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

SLICE_BYTES = 256 << 10
"""Readers take turns after so many bytes."""
_RECORD = struct.Struct("<qq")  # when the last reservation ends in ns, and bytes reserved so far
_SECOND_NS = 1_000_000_000


class SharedRate:
    """A rate that all processes share through a small file.

    Who wants n bytes reserves the next n / rate seconds, and waits until they are over. Time in
    which nobody reads is lost, not saved up.

    Args:
        path: of the file; made if it is not there.
        bytes_per_second: of all processes together.
        clock_ns: one clock for all processes.
    """

    def __init__(
        self,
        path: str,
        bytes_per_second: float,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rate, self._clock_ns, self._sleep = bytes_per_second, clock_ns, sleep
        self._lock = threading.Lock()  # flock is one for all threads of a process

    def reserve(self, nbytes: int) -> int:
        """Takes the next place in line; returns the nanosecond at which it is over."""
        with self._lock:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                end, total = self._record()
                end = max(end, self._clock_ns()) + round(nbytes * _SECOND_NS / self._rate)
                os.pwrite(self._handle, _RECORD.pack(end, total + nbytes), 0)
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)
        return end

    def wait(self, nbytes: int) -> None:
        """Blocks for as long as so many bytes take, beside all who read at the same time."""
        while nbytes > 0:
            part = min(nbytes, SLICE_BYTES)
            nbytes -= part
            left = self.reserve(part) - self._clock_ns()
            if left > 0:
                self._sleep(left / _SECOND_NS)

    def total(self) -> int:
        """Bytes that were reserved by all processes."""
        return self._record()[1]

    def close(self) -> None:
        os.close(self._handle)

    def _record(self) -> tuple[int, int]:
        data = os.pread(self._handle, _RECORD.size, 0)
        return _RECORD.unpack(data) if data else (0, 0)


class SlowStore(LocalStore):
    """Local files that are read at a shared rate."""

    def __init__(self, rate: SharedRate) -> None:
        super().__init__()
        self._rate = rate

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Reader:
        return _SlowReader(super().open(path, direct=direct, beneath=beneath), self._rate)


class _SlowReader:
    def __init__(self, inner: Reader, rate: SharedRate) -> None:
        self._inner, self._rate, self.size = inner, rate, inner.size

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        wanted = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._rate.wait(min(wanted, max(0, self.size - offset)))
        return self._inner.read_into(offset, buffers)

    def close(self) -> None:
        self._inner.close()
