"""A file system in memory that forgets, at a crash, all that was not synced.

It takes the Store's words literally. A file's bytes survive as they were at its last `sync`; a
directory's names as they were at its last `sync_dir`, or after any number of the operations since,
in their order. `crash` gives the file system as the next boot would find it.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxckpt.errors import StorageError
from jaxckpt.io.store import Stat, parent_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable: bytes | None = None  # never synced: its length after a crash is anybody's


class _Dir:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Dir] = {}
        self.durable: dict[str, _File | _Dir] = {}
        self.history: list[dict[str, _File | _Dir]] = []  # after each change since the last sync

    def changed(self) -> None:
        self.history.append(dict(self.names))


class MemoryStore:
    """See the module. Paths are absolute; the root directory is there.

    Args:
        has_exchange: whether `exchange` works.
        free: what `free_bytes` says.
    """

    def __init__(self, *, has_exchange: bool = True, free: int | None = None) -> None:
        self._root = _Dir()
        self._locks: set[str] = set()
        self._mutex = threading.RLock()
        self._has_exchange, self._free = has_exchange, free

    # -- the Store ---------------------------------------------------------------------------------

    def create(self, path: str, *, direct: bool) -> MemoryWriter:
        del direct
        with self._mutex:
            parent, name = self._parent(path, "create")
            if name in parent.names:
                raise StorageError("create", path, OSError(errno.EEXIST, "exists"))
            file = parent.names[name] = _File()
            parent.changed()
            return MemoryWriter(file, self._mutex)

    def open(self, path: str, *, direct: bool, beneath: str = "") -> MemoryReader:
        del direct, beneath
        with self._mutex:
            node = self._find(path)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if isinstance(node, _Dir):
                raise StorageError("open", path, OSError(errno.EISDIR, "a directory"))
            return MemoryReader(bytes(node.data))

    def append(self, path: str, data: bytes) -> None:
        with self._mutex:
            if self._find(path) is None and self._find(parent_of(path)) is not None:
                self.create(path, direct=False)
            self._file(path, "append").data.extend(data)

    def sync_file(self, path: str) -> None:
        with self._mutex:
            file = self._file(path, "sync")
            file.durable = bytes(file.data)

    def make_dir(self, path: str) -> None:
        with self._mutex:
            parent, name = self._parent(path, "make directory")
            if name in parent.names:
                raise StorageError("make directory", path, OSError(errno.EEXIST, "exists"))
            parent.names[name] = _Dir()
            parent.changed()

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            return list(self._dir(path, "list").names)

    def stat(self, path: str) -> Stat | None:
        with self._mutex:
            node = self._find(path)
            if node is None:
                return None
            return Stat(True, 0) if isinstance(node, _Dir) else Stat(False, len(node.data))

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            folder = self._dir(path, "sync directory")
            folder.durable = dict(folder.names)
            folder.history.clear()

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            old, old_name = self._parent(source, "rename")
            new, new_name = self._parent(target, "rename")
            if old_name not in old.names:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
            if new_name in new.names:
                raise StorageError("rename", target, OSError(errno.EEXIST, "exists"))
            new.names[new_name] = old.names.pop(old_name)
            new.changed()
            if old is not new:
                old.changed()

    def exchange(self, one: str, other: str) -> bool:
        if not self._has_exchange:
            return False
        with self._mutex:
            a, a_name = self._parent(one, "exchange")
            b, b_name = self._parent(other, "exchange")
            a.names[a_name], b.names[b_name] = b.names[b_name], a.names[a_name]
            a.changed()
            if b is not a:
                b.changed()
            return True

    def remove_file(self, path: str) -> None:
        self._remove(path, _File)

    def remove_dir(self, path: str) -> None:
        with self._mutex:
            node = self._find(path)
            if isinstance(node, _Dir) and node.names:
                raise StorageError("remove", path, OSError(errno.ENOTEMPTY, "not empty"))
            self._remove(path, _Dir)

    def free_bytes(self, path: str) -> int | None:
        del path
        return self._free

    def lock(self, path: str, *, owner: bool) -> MemoryLock | None:
        del owner
        with self._mutex:
            if path in self._locks:
                return None
            parent, name = self._parent(path, "lock")
            if name not in parent.names:
                parent.names[name] = _File()
                parent.changed()
            self._locks.add(path)
            return MemoryLock(lambda: self._unlock(path))

    # -- crashes -----------------------------------------------------------------------------------

    def crash(self, chance: random.Random | None = None) -> MemoryStore:
        """The file system after a loss of power; this one is not changed.

        Args:
            chance: chooses what of the unsynced survives; None loses all of it.
        """
        with self._mutex:
            after = MemoryStore(has_exchange=self._has_exchange, free=self._free)
            after._root = self._survivors(self._root, chance)
            return after

    def kill(self) -> MemoryStore:
        """The file system after the process was killed: everything written is there, no lock."""
        with self._mutex:
            after = MemoryStore(has_exchange=self._has_exchange, free=self._free)
            after._root = self._copy(self._root)
            return after

    def _survivors(self, folder: _Dir, chance: random.Random | None) -> _Dir:
        names = folder.durable
        if chance is not None and folder.history:
            names = chance.choice([folder.durable, *folder.history])
        after = _Dir()
        for name, node in names.items():
            if isinstance(node, _Dir):
                after.names[name] = self._survivors(node, chance)
                continue
            file = after.names[name] = _File()
            kept = node.durable or b""
            if chance is not None and node.durable != bytes(node.data):
                kept = chance.choice([kept, bytes(node.data), _torn(node, chance)])
            file.data = bytearray(kept)
            file.durable = bytes(kept)
        after.durable = dict(after.names)
        return after

    def _copy(self, folder: _Dir) -> _Dir:
        after = _Dir()
        for name, node in folder.names.items():
            if isinstance(node, _Dir):
                after.names[name] = self._copy(node)
            else:
                file = after.names[name] = _File()
                file.data, file.durable = bytearray(node.data), node.durable
        after.durable = {n: after.names[n] for n in folder.durable if n in after.names}
        return after

    # -- the tree ----------------------------------------------------------------------------------

    def _find(self, path: str) -> _File | _Dir | None:
        node: _File | _Dir | None = self._root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            if not isinstance(node, _Dir):
                return None
            node = node.names.get(part)
        return node

    def _dir(self, path: str, operation: str) -> _Dir:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, _File):
            raise StorageError(operation, path, OSError(errno.ENOTDIR, "not a directory"))
        return node

    def _file(self, path: str, operation: str) -> _File:
        node = self._find(path)
        if isinstance(node, _File):
            return node
        number = errno.ENOENT if node is None else errno.EISDIR
        raise StorageError(operation, path, OSError(number, "no file"))

    def _parent(self, path: str, operation: str) -> tuple[_Dir, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self._dir(head, operation), name

    def _remove(self, path: str, kind: type) -> None:
        with self._mutex:
            node = self._find(path)
            if node is None:
                return
            if not isinstance(node, kind):
                raise StorageError("remove", path, OSError(errno.EPERM, "of another kind"))
            parent, name = self._parent(path, "remove")
            del parent.names[name]
            parent.changed()

    def _unlock(self, path: str) -> None:
        with self._mutex:
            self._locks.discard(path)
            self._remove(path, _File)


def _torn(file: _File, chance: random.Random) -> bytes:
    """Some sectors of the file as written, the others as zeros or as they were before."""
    now, before = bytes(file.data), file.durable or b""
    sectors = range(0, len(now), 512)
    return b"".join(
        now[s : s + 512]
        if chance.random() < 0.5
        else before[s : s + 512].ljust(len(now[s : s + 512]), b"\0")
        for s in sectors
    )


class MemoryWriter:
    """See `jaxckpt.io.store.Writer`."""

    def __init__(self, file: _File, mutex: threading.RLock) -> None:  # pyright: ignore[reportInvalidTypeForm]
        self._file, self._mutex = file, mutex

    def write_at(self, offset: int, data: Buffer) -> None:
        new = bytes(memoryview(data).cast("B"))
        with self._mutex:
            missing = offset + len(new) - len(self._file.data)
            if missing > 0:
                self._file.data.extend(bytes(missing))
            self._file.data[offset : offset + len(new)] = new

    def sync(self) -> None:
        with self._mutex:
            self._file.durable = bytes(self._file.data)

    def close(self) -> None:
        """Nothing to do."""


class MemoryReader:
    """See `jaxckpt.io.store.Reader`."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        total = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            piece = self._data[offset : offset + len(view)]
            view[: len(piece)] = piece
            total, offset = total + len(piece), offset + len(piece)
            if len(piece) < len(view):
                break
        return total

    def close(self) -> None:
        """Nothing to do."""


class MemoryLock:
    """See `jaxckpt.io.store.Lock`."""

    def __init__(self, unlock: Callable[[], None]) -> None:
        self._unlock = unlock

    def release(self) -> None:
        self._unlock()
