"""Bytes that a process reads and writes: at the Store, and as the system counts them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxckpt.io.local import LocalStore
from jaxckpt.io.store import Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ACCOUNT = "/proc/self/io"


class CountingStore(LocalStore):
    """Local files; counts what goes through.

    Attributes:
        read, written: bytes since `reset`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.read = self.written = 0

    def add(self, *, read: int = 0, written: int = 0) -> None:
        """Counts; any thread."""
        with self._lock:
            self.read += read
            self.written += written

    def create(self, path: str, *, direct: bool) -> Writer:
        return _CountingWriter(super().create(path, direct=direct), self)

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Reader:
        return _CountingReader(super().open(path, direct=direct, beneath=beneath), self)


class _CountingWriter:
    def __init__(self, inner: Writer, counts: CountingStore) -> None:
        self._inner, self._counts = inner, counts

    def write_at(self, offset: int, data: Buffer) -> None:
        self._inner.write_at(offset, data)
        self._counts.add(written=memoryview(data).nbytes)

    def sync(self) -> None:
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


class _CountingReader:
    def __init__(self, inner: Reader, counts: CountingStore) -> None:
        self._inner, self._counts, self.size = inner, counts, inner.size

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        got = self._inner.read_into(offset, buffers)
        self._counts.add(read=got)
        return got

    def close(self) -> None:
        self._inner.close()


def account() -> dict[str, int]:
    """What the system counted for this process since its start.

    ``rchar`` and ``wchar`` are the bytes that its read and write calls moved, whoever made them;
    ``read_bytes`` those that it made the disk read, which leaves out what another process brought
    into the page cache of this machine.
    """
    with open(_ACCOUNT) as lines:
        return {name: int(value) for name, value in (line.split(":") for line in lines)}
