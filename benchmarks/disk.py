"""The disk between timed sections: durable, quiet and cold."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import time

_QUIET_SECONDS = 0.5
_DROP_CACHES = "/proc/sys/vm/drop_caches"
_LIBC = ctypes.CDLL(None)


def sync_tree(path: str) -> None:
    """Makes a file or directory tree durable, its name in the parent included.

    Peers leave this to the system, which writes back up to half a minute later; a time without
    it is the time of a copy in memory.
    """
    for folder, _, names in os.walk(path):
        for name in names:
            sync(os.path.join(folder, name))
        sync(folder)
    if os.path.isfile(path):
        sync(path)
    sync(os.path.dirname(path))


def sync(path: str) -> None:
    """Blocks until one file or directory is durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: str) -> None:
    """Removes a file or a tree, if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def settle(seconds: float = _QUIET_SECONDS) -> None:
    """Waits until nothing of what went before is left to be written or discarded."""
    gc.collect()
    os.sync()
    time.sleep(seconds)


def settle_cold() -> bool:
    """`settle`, with nothing in the page cache; returns whether the system let us empty it.

    Freed memory goes back to the system too: a restore happens once in the life of a process and
    so into fresh memory, not into what the repeat before it left.
    """
    gc.collect()
    trim_heap()
    os.sync()
    dropped = _drop_caches()
    time.sleep(_QUIET_SECONDS)
    return dropped


def trim_heap() -> None:
    """Gives memory that was freed back to the system, where the C library can."""
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _drop_caches() -> bool:
    try:
        with open(_DROP_CACHES, "w") as control:
            control.write("3")
    except OSError:
        return False
    return True
