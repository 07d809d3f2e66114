"""A Store around another one that counts calls and makes one of them, or all from one on, fail."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxckpt.errors import StorageError
from jaxckpt.io.store import Lock, Reader, Stat, Store, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

MUTATING = frozenset(
    {
        "create",
        "write",
        "append",
        "sync",
        "make_dir",
        "sync_dir",
        "rename",
        "exchange",
        "remove",
        "lock",
    }
)
READING = frozenset({"open", "read", "list_dir", "stat"})


class KilledError(BaseException):
    """The process would have died here. No handler of `Exception` sees it."""


class FaultyStore:
    """Makes the k-th call fail.

    Args:
        inner: does the work.
        counted: kinds of calls that count.
        fail_at: number of the first call that fails, from 1; None for none.
        error: an errno, or None to kill: the call and every later one raise `KilledError`.
        sticky: whether the calls after it fail too.
        after: whether the failing call is carried out first.
        skip: calls of these numbers are not carried out and pretend that they were.
    """

    def __init__(
        self,
        inner: Store,
        *,
        counted: frozenset[str] = MUTATING,
        fail_at: int | None = None,
        error: int | None = None,
        sticky: bool = False,
        after: bool = False,
        skip: frozenset[int] = frozenset(),
    ) -> None:
        self._inner, self._counted = inner, counted
        self._fail_at, self._error, self._sticky, self._after = fail_at, error, sticky, after
        self._skip = skip
        self._mutex = threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.bytes_read = 0
        self.bytes_written = 0

    def do(self, kind: str, path: str, call: Callable[[], Any], skipped: Any = None) -> Any:
        """Carries a call out, or not."""
        if kind not in self._counted:
            return call()
        with self._mutex:
            self.calls.append((kind, path))
            number = len(self.calls)
        if number in self._skip:
            return skipped
        if not self._fails(number):
            return call()
        if self._after and number == self._fail_at:
            call()
        if self._error is None:
            raise KilledError(f"{kind} {path}")
        raise StorageError(kind, path, OSError(self._error, os.strerror(self._error)))

    def _fails(self, number: int) -> bool:
        if self._fail_at is None or number < self._fail_at:
            return False
        return number == self._fail_at or self._sticky or self._error is None

    def create(self, path: str, *, direct: bool) -> Writer:
        writer = self.do("create", path, lambda: self._inner.create(path, direct=direct))
        return _FaultyWriter(self, path, writer)

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Reader:
        reader = self.do(
            "open", path, lambda: self._inner.open(path, direct=direct, beneath=beneath)
        )
        return _FaultyReader(self, path, reader)

    def append(self, path: str, data: bytes) -> None:
        self.do("append", path, lambda: self._inner.append(path, data))

    def sync_file(self, path: str) -> None:
        self.do("sync", path, lambda: self._inner.sync_file(path))

    def make_dir(self, path: str) -> None:
        self.do("make_dir", path, lambda: self._inner.make_dir(path))

    def list_dir(self, path: str) -> list[str]:
        return self.do("list_dir", path, lambda: self._inner.list_dir(path))

    def stat(self, path: str) -> Stat | None:
        return self.do("stat", path, lambda: self._inner.stat(path))

    def sync_dir(self, path: str) -> None:
        self.do("sync_dir", path, lambda: self._inner.sync_dir(path))

    def rename(self, source: str, target: str) -> None:
        self.do("rename", target, lambda: self._inner.rename(source, target))

    def exchange(self, one: str, other: str) -> bool:
        return self.do("exchange", other, lambda: self._inner.exchange(one, other), True)

    def remove_file(self, path: str) -> None:
        self.do("remove", path, lambda: self._inner.remove_file(path))

    def remove_dir(self, path: str) -> None:
        self.do("remove", path, lambda: self._inner.remove_dir(path))

    def free_bytes(self, path: str) -> int | None:
        return self._inner.free_bytes(path)

    def lock(self, path: str, *, owner: bool) -> Lock | None:
        return self.do("lock", path, lambda: self._inner.lock(path, owner=owner))


class _FaultyWriter:
    def __init__(self, store: FaultyStore, path: str, inner: Writer) -> None:
        self._store, self._path, self._inner = store, path, inner

    def write_at(self, offset: int, data: Buffer) -> None:
        self._store.bytes_written += len(memoryview(data).cast("B"))
        self._store.do("write", self._path, lambda: self._inner.write_at(offset, data))

    def sync(self) -> None:
        self._store.do("sync", self._path, self._inner.sync)

    def close(self) -> None:
        self._inner.close()


class _FaultyReader:
    def __init__(self, store: FaultyStore, path: str, inner: Reader) -> None:
        self._store, self._path, self._inner = store, path, inner
        self.size = inner.size

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        got = self._store.do("read", self._path, lambda: self._inner.read_into(offset, buffers))
        self._store.bytes_read += got
        return got

    def close(self) -> None:
        self._inner.close()
