"""The Store: the only way in which jaxckpt touches files.

A Store is told paths as text. Whatever a Store does not promise here must not be relied on: a
write is not durable before `sync`, a name not before `sync_dir` of its directory, and after a
failed `sync` the file is lost. `jaxckpt.testing` has a Store in memory that takes these words
literally, and one that makes any call fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 4096
"""Offsets, lengths and memory addresses of direct I/O are multiples of this."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What a path is; ``size`` in bytes for a file."""

    is_dir: bool
    size: int


class Writer(Protocol):
    """An open new file."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Writes all of ``data`` at an offset; may be called by several threads."""
        ...

    def sync(self) -> None:
        """Returns once everything written is durable. After an error: never try again."""
        ...

    def close(self) -> None: ...


class Reader(Protocol):
    """An open file to read."""

    size: int

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Fills the buffers in turn from an offset; returns how many bytes the file had.

        With direct I/O the offset and each buffer's address and length must be multiples of
        ``BLOCK_BYTES``; may be called by several threads.
        """
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that the system drops when its process ends, however it ends."""

    def release(self) -> None:
        """Drops the lock and removes its file."""
        ...


class Store(Protocol):
    """Files and directories. Errors are `StorageError`, or `FileNotFoundError` for a read."""

    def create(self, path: str, *, direct: bool) -> Writer:
        """A new file; fails if the name is taken. ``direct`` asks to go past the page cache."""
        ...

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Reader:
        """An existing regular file; below ``beneath`` no part of the path may be a link."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Adds to the end of a regular file, made if it is not there; links are not followed.

        In one write, so that what several writers append does not mix. Not durable by itself.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Returns once all that was appended to a file is durable (its name: ``sync_dir``)."""
        ...

    def make_dir(self, path: str) -> None:
        """A new directory; fails if the name is taken."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        ...

    def stat(self, path: str) -> Stat | None:
        """What is at a path, links not followed; None for nothing."""
        ...

    def sync_dir(self, path: str) -> None:
        """Returns once the names in a directory are durable."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames in one step, never replacing: fails with EEXIST or ENOTEMPTY."""
        ...

    def exchange(self, one: str, other: str) -> bool:
        """Swaps two names in one step; False where the file system can not."""
        ...

    def remove_file(self, path: str) -> None:
        """Removes a file; nothing happens if it is gone."""
        ...

    def remove_dir(self, path: str) -> None:
        """Removes an empty directory; nothing happens if it is gone."""
        ...

    def free_bytes(self, path: str) -> int | None:
        """Room on the file system of a directory; None where nobody knows."""
        ...

    def lock(self, path: str, *, owner: bool) -> Lock | None:
        """Makes a lock file, or takes an old one over; None if a live owner holds it.

        Where the file system has no locks, an ``owner`` gets one that protects nothing, and
        everybody else None: then nobody can tell a dead owner from a live one.
        """
        ...


def join(*parts: str) -> str:
    """Joins path parts by one slash each."""
    return "/".join(p.rstrip("/") if i == 0 and p != "/" else p for i, p in enumerate(parts) if p)


def parent_of(path: str) -> str:
    """The directory that a path is in."""
    head, _, _ = path.rstrip("/").rpartition("/")
    return head or ("/" if path.startswith("/") else ".")


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


def write_file(store: Store, path: str, data: bytes) -> None:
    """A new small file, durable when this returns (its name only after ``sync_dir``)."""
    writer = store.create(path, direct=False)
    try:
        writer.write_at(0, data)
        writer.sync()
    finally:
        writer.close()


def read_file(store: Store, path: str, limit: int, beneath: str = "") -> bytes:
    """A whole small file.

    Raises:
        ValueError: it is larger than ``limit`` bytes.
    """
    reader = store.open(path, direct=False, beneath=beneath)
    try:
        if reader.size > limit:
            raise ValueError(f"{path} has {reader.size} bytes; allowed are {limit}")
        data = bytearray(reader.size)
        got = reader.read_into(0, [data]) if data else 0
        return bytes(data[:got])
    finally:
        reader.close()


def make_dirs(store: Store, path: str) -> list[str]:
    """Makes a directory and those above it that are not there; returns the new ones, top first."""
    missing: list[str] = []
    while store.stat(path) is None and path not in ("", ".", "/"):
        missing.append(path)
        path = parent_of(path)
    for new in reversed(missing):
        store.make_dir(new)
    return missing[::-1]


def remove_tree(store: Store, path: str) -> None:
    """Removes a directory with all that is in it; what is gone already is no error."""
    found = store.stat(path)
    if found is None:
        return
    if not found.is_dir:
        store.remove_file(path)
        return
    try:
        names = store.list_dir(path)
    except FileNotFoundError:
        return
    for name in names:
        remove_tree(store, join(path, name))
    store.remove_dir(path)
