"""The Store on a local or mounted POSIX file system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat as stat_module
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from jaxckpt.errors import JaxckptError, StorageError
from jaxckpt.io.store import BLOCK_BYTES, Stat

if TYPE_CHECKING:
    from typing_extensions import Buffer

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_AT_FDCWD = -100
_READING = ("open", "list")
_NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def _named(operation: str, path: str) -> Generator[None]:
    """Gives an OSError the operation and the path; what is missing to a reader keeps its class."""
    try:
        yield
    except JaxckptError:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and operation in _READING:
            raise
        raise StorageError(operation, path, error) from error


class LocalStore:
    """Files by their paths.

    Args:
        require_direct: fail where direct I/O was asked for and the file system can not do it.
    """

    def __init__(self, *, require_direct: bool = False) -> None:
        self._require_direct = require_direct

    def create(self, path: str, *, direct: bool) -> LocalWriter:
        with _named("create", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(path, flags, 0o666)
            use_direct = direct and self._set_direct(handle)
            return LocalWriter(handle, path, use_direct)

    def open(self, path: str, *, direct: bool, beneath: str = "") -> LocalReader:
        with _named("open", path):
            handle = _open_plain(path, beneath)
            info = os.fstat(handle)
            if not stat_module.S_ISREG(info.st_mode):
                os.close(handle)
                raise OSError(errno.EISDIR, "not a regular file")
            use_direct = direct and self._set_direct(handle)
            return LocalReader(handle, path, info.st_size, use_direct)

    def _set_direct(self, handle: int) -> bool:
        try:
            if not _O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT on this system")
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | _O_DIRECT)
        except OSError:
            if self._require_direct:
                os.close(handle)
                raise
            return False
        return True

    def append(self, path: str, data: bytes) -> None:
        with _named("append", path):
            handle = _open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                view = memoryview(data)
                while view:  # more than once on a full disk only: the next one says so
                    view = view[os.write(handle, view) :]
            finally:
                os.close(handle)

    def sync_file(self, path: str) -> None:
        with _named("sync", path):
            handle = _open_regular(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def make_dir(self, path: str) -> None:
        with _named("make directory", path):
            os.mkdir(path)

    def list_dir(self, path: str) -> list[str]:
        with _named("list", path):
            return os.listdir(path)

    def stat(self, path: str) -> Stat | None:
        with _named("look at", path):
            try:
                info = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return Stat(stat_module.S_ISDIR(info.st_mode), info.st_size)

    def sync_dir(self, path: str) -> None:
        with _named("sync directory", path):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def rename(self, source: str, target: str) -> None:
        with _named("rename", target):
            if not _renameat2(source, target, _RENAME_NOREPLACE):
                # Plain rename would replace a file or an empty directory, so look first.
                if os.path.lexists(target):
                    raise OSError(errno.EEXIST, "exists")
                os.rename(source, target)

    def exchange(self, one: str, other: str) -> bool:
        with _named("exchange", other):
            return _renameat2(one, other, _RENAME_EXCHANGE)

    def remove_file(self, path: str) -> None:
        with _named("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: str) -> None:
        with _named("remove", path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def free_bytes(self, path: str) -> int | None:
        with _named("look at", path):
            info = os.statvfs(path)
            return info.f_bavail * info.f_frsize

    def lock(self, path: str, *, owner: bool) -> LocalLock | None:
        with _named("lock", path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The owner before may have removed the name between our open and our lock.
                if os.stat(path).st_ino != os.fstat(handle).st_ino:
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                os.close(handle)
                return None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    os.close(handle)
                    raise
                if not owner:
                    os.close(handle)
                    return None
            return LocalLock(handle, path)


class LocalWriter:
    """See `store.Writer`."""

    def __init__(self, handle: int, path: str, direct: bool) -> None:
        self._handle, self._path, self.direct = handle, path, direct

    def write_at(self, offset: int, data: Buffer) -> None:
        with _named("write", self._path):
            view = memoryview(data).cast("B")
            while len(view):
                try:
                    done = os.pwrite(self._handle, view, offset)
                except OSError as error:
                    if not self.direct or error.errno != errno.EINVAL:
                        raise
                    self._leave_direct()  # a file system that takes the flag and not the write
                    continue
                offset, view = offset + done, view[done:]
                if len(view) and done % BLOCK_BYTES and self.direct:
                    self._leave_direct()

    def _leave_direct(self) -> None:
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        fcntl.fcntl(self._handle, fcntl.F_SETFL, flags & ~_O_DIRECT)
        self.direct = False

    def sync(self) -> None:
        with _named("sync", self._path):
            os.fsync(self._handle)

    def close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            with _named("close", self._path):
                os.close(handle)


class LocalReader:
    """See `store.Reader`."""

    def __init__(self, handle: int, path: str, size: int, direct: bool) -> None:
        self._handle, self._path, self.size, self.direct = handle, path, size, direct

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        views = [memoryview(b).cast("B") for b in buffers]
        total = 0
        with _named("read", self._path):
            while views:
                try:
                    got = os.preadv(self._handle, views, offset)
                except OSError as error:
                    if not self.direct or error.errno != errno.EINVAL:
                        raise
                    self._leave_direct()
                    continue
                if got == 0:
                    break
                total, offset = total + got, offset + got
                while views and got >= len(views[0]):
                    got -= len(views.pop(0))
                if views:
                    if self.direct and got % BLOCK_BYTES:
                        if offset >= self.size:
                            break
                        self._leave_direct()
                    views[0] = views[0][got:]
        return total

    def _leave_direct(self) -> None:
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        fcntl.fcntl(self._handle, fcntl.F_SETFL, flags & ~_O_DIRECT)
        self.direct = False

    def close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)


class LocalLock:
    """An flock on an open file; the kernel drops it with the process."""

    def __init__(self, handle: int, path: str) -> None:
        self._handle, self._path = handle, path

    def release(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(handle)


def _open_regular(path: str, flags: int) -> int:
    """Opens a regular file by its own name; never waits, as a pipe would make it."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if not stat_module.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")
    return handle


def _open_plain(path: str, beneath: str) -> int:
    """Opens for reading; below ``beneath`` every part must be a plain directory or file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    if not beneath:
        return os.open(path, flags)
    parts = path.removeprefix(beneath).strip("/").split("/")
    handle = os.open(beneath, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for i, part in enumerate(parts):
        kind = flags if i == len(parts) - 1 else flags | os.O_DIRECTORY
        try:
            deeper = os.open(part, kind, dir_fd=handle)
        finally:
            os.close(handle)
        handle = deeper
    return handle


def _renameat2(source: str, target: str, flag: int) -> bool:
    """True when done; False where the system has no such call; OSError otherwise."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_SUCH_CALL:
        return False
    raise OSError(number, os.strerror(number), target)


_LIBC = ctypes.CDLL(None, use_errno=True)


def aligned_memory(nbytes: int, *, huge_pages: bool = False) -> mmap.mmap:
    """Fresh page-aligned memory.

    Args:
        huge_pages: ask for them. Many threads at once touch them faster than small ones, one
            thread alone slower; see docs/performance.md.
    """
    memory = mmap.mmap(-1, nbytes)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
