"""What every Store must do; call each check with a fresh, empty directory of the Store.

``for check in CHECKS: check(store, directory)``
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from jaxckpt.errors import StorageError
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES, Store, join, read_file, remove_tree, write_file


def check_round_trip(store: Store, directory: str) -> None:
    """Bytes come back as they were written, whole and in part, with direct I/O and without."""
    data = bytes(range(256)) * 64
    for direct in (False, True):
        path = join(directory, f"file-{direct}")
        writer = store.create(path, direct=direct)
        memory = aligned_memory(len(data))
        memory[:] = data
        writer.write_at(BLOCK_BYTES, memoryview(memory)[BLOCK_BYTES:])
        writer.write_at(0, memoryview(memory)[:BLOCK_BYTES])
        writer.sync()
        writer.close()
        reader = store.open(path, direct=direct, beneath=directory)
        back = aligned_memory(len(data))
        halves = [memoryview(back)[:BLOCK_BYTES], memoryview(back)[BLOCK_BYTES:]]
        assert reader.size == len(data)
        assert reader.read_into(0, halves) == len(data)
        assert bytes(back) == data
        reader.close()


def check_short_read(store: Store, directory: str) -> None:
    """Reading over the end gives what there is."""
    write_file(store, join(directory, "short"), b"abc")
    reader = store.open(join(directory, "short"), direct=False)
    buffer = bytearray(10)
    assert reader.read_into(1, [buffer]) == 2
    assert bytes(buffer[:2]) == b"bc"
    reader.close()


def check_append(store: Store, directory: str) -> None:
    """Makes the file, adds to its end, leaves what is there; only regular files."""
    path, folder = join(directory, "log"), join(directory, "folder")
    store.append(path, b"one\n")
    store.append(path, b"")
    store.append(path, b"two\n")
    store.sync_file(path)
    assert read_file(store, path, 100) == b"one\ntwo\n"
    write_file(store, join(directory, "made"), b"a")
    store.append(join(directory, "made"), b"b")
    assert read_file(store, join(directory, "made"), 100) == b"ab"
    store.make_dir(folder)
    _fails_with((errno.EISDIR,), lambda: store.append(folder, b"x"))
    _fails_with((errno.ENOENT,), lambda: store.append(join(directory, "no", "log"), b"x"))
    _fails_with((errno.ENOENT,), lambda: store.sync_file(join(directory, "missing")))


def check_names_are_taken_once(store: Store, directory: str) -> None:
    """Nothing that is there is replaced."""
    path = join(directory, "name")
    write_file(store, path, b"first")
    _fails_with((errno.EEXIST,), lambda: store.create(path, direct=False))
    write_file(store, join(directory, "other"), b"second")
    _fails_with((errno.EEXIST,), lambda: store.rename(join(directory, "other"), path))
    folder, full = join(directory, "folder"), join(directory, "full")
    store.make_dir(folder)
    _fails_with((errno.EEXIST,), lambda: store.make_dir(folder))
    store.make_dir(full)
    write_file(store, join(full, "x"), b"x")
    taken = (errno.EEXIST, errno.ENOTEMPTY)
    _fails_with(taken, lambda: store.rename(folder, full))
    assert read_file(store, path, 100) == b"first"
    assert read_file(store, join(full, "x"), 100) == b"x"


def check_missing(store: Store, directory: str) -> None:
    """What is not there: None from `stat`, FileNotFoundError to read, nothing to remove."""
    path = join(directory, "missing")
    assert store.stat(path) is None
    store.remove_file(path)
    store.remove_dir(path)
    remove_tree(store, path)
    try:
        store.open(path, direct=False)
    except FileNotFoundError:
        return
    raise AssertionError("open of a missing file did not raise FileNotFoundError")


def check_directories(store: Store, directory: str) -> None:
    """Listing, renaming with content, removing."""
    folder = join(directory, "dir")
    store.make_dir(folder)
    write_file(store, join(folder, "a"), b"1")
    store.sync_dir(folder)
    store.rename(folder, join(directory, "moved"))
    store.sync_dir(directory)
    assert store.list_dir(join(directory, "moved")) == ["a"]
    found = store.stat(join(directory, "moved"))
    assert found is not None
    assert found.is_dir
    remove_tree(store, join(directory, "moved"))
    assert store.list_dir(directory) == []


def check_exchange(store: Store, directory: str) -> None:
    """Two directories swap their names, or the Store says that it can not."""
    one, other = join(directory, "one"), join(directory, "other")
    store.make_dir(one)
    store.make_dir(other)
    write_file(store, join(one, "x"), b"one")
    swapped = store.exchange(one, other)
    assert store.list_dir(other if swapped else one) == ["x"]


def check_lock(store: Store, directory: str) -> None:
    """A lock is held once; released, it leaves no file."""
    path = join(directory, "lease")
    lock = store.lock(path, owner=True)
    assert lock is not None
    assert store.lock(path, owner=False) is None
    lock.release()
    assert store.stat(path) is None
    again = store.lock(path, owner=True)
    assert again is not None
    again.release()


CHECKS: tuple[Callable[[Store, str], None], ...] = (
    check_round_trip,
    check_short_read,
    check_append,
    check_names_are_taken_once,
    check_missing,
    check_directories,
    check_exchange,
    check_lock,
)


def _fails_with(numbers: tuple[int, ...], call: Callable[[], object]) -> None:
    try:
        call()
    except StorageError as error:
        assert error.errno in numbers, error
        return
    raise AssertionError(f"no StorageError with errno in {numbers}")
