"""Leases: pooled, page-aligned host memory that was touched before, counted in bytes.

Memory that is touched for the first time costs several times what copying into it costs, so
blocks are kept and handed out again, the last returned first. The budget is a ceiling: whoever
wants more waits until somebody gives back.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jaxckpt.errors import StorageError
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES

_MAX_BLOCK_BYTES = 16 << 20
_MIN_BLOCK_BYTES = 256 << 10
_BLOCKS_WANTED = 24
_LOOK_AGAIN_SECS = 0.1
_MIN_BLOCKS = 18  # see io/extents.py: what 8 copy threads may hold unfinished, and one more


def block_bytes_for(budget_bytes: int) -> int:
    """Large blocks reach the disk's rate; a small budget is cut finer so that copies and writes
    still overlap.
    """
    block = min(_MAX_BLOCK_BYTES, budget_bytes // _BLOCKS_WANTED)
    return max(_MIN_BLOCK_BYTES, block // BLOCK_BYTES * BLOCK_BYTES)


class HostPool:
    """Blocks of one size within a byte budget.

    Args:
        budget_bytes: never holds more than this.
        clock_ns: to measure for how long somebody had to wait for a block.
    """

    def __init__(self, budget_bytes: int, clock_ns: Callable[[], int] | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.block_bytes = block_bytes_for(budget_bytes)
        self.peak_bytes = 0
        self._free: list[NDArray[np.uint8]] = []
        self._held = 0  # bytes of all blocks, free or out
        self._limit = budget_bytes
        self._changed = threading.Condition()
        self._clock_ns = clock_ns or (lambda: 0)
        self._waiting = self._waited_ns = self._since_ns = 0

    @property
    def blocks(self) -> int:
        """How many blocks there may be at once."""
        return self._limit // self.block_bytes

    def acquire(self, stopped: Callable[[], bool] = lambda: False) -> NDArray[np.uint8] | None:
        """A block; waits until there is one, or gives None once ``stopped`` says so.

        Args:
            stopped: whether the save that wants the block has failed.

        Raises:
            StorageError: the system gave no memory.
        """
        with self._changed:
            while not self._free:
                if stopped():
                    return None
                if self._held + self.block_bytes <= self._limit:
                    self._held += self.block_bytes
                    self.peak_bytes = max(self.peak_bytes, self._held)
                    break
                self._wait()
            else:
                return self._free.pop()
        try:
            return np.frombuffer(aligned_memory(self.block_bytes), np.uint8)
        except (OSError, MemoryError, ValueError) as error:
            with self._changed:
                self._held -= self.block_bytes
                self._changed.notify()
            cause = error if isinstance(error, OSError) else OSError(errno.ENOMEM, str(error))
            raise StorageError(
                "allocate", "host memory", cause, "Lower memory_budget_bytes or free memory."
            ) from error

    @property
    def waited_secs(self) -> float:
        """For how long so far one thread at least has waited for a block."""
        return self._waited_ns * 1e-9

    def _wait(self) -> None:
        """With the lock held; times in which several wait count once."""
        if self._waiting == 0:
            self._since_ns = self._clock_ns()
        self._waiting += 1
        try:
            self._changed.wait(_LOOK_AGAIN_SECS)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._waited_ns += self._clock_ns() - self._since_ns

    def give_back(self, block: NDArray[np.uint8]) -> None:
        """Returns a block that nobody looks at any more."""
        with self._changed:
            if self._held > self._limit:  # the headroom has grown since
                self._held -= self.block_bytes
            else:
                self._free.append(block)
            self._changed.notify()  # one block, one waiter

    def set_headroom(self, nbytes: int) -> None:
        """Keeps part of the budget free for memory that the user of the pool allocates itself.

        A few blocks are always granted, so that a save goes on under any budget.
        """
        with self._changed:
            least = _MIN_BLOCKS * self.block_bytes
            self._limit = max(least, self.budget_bytes - nbytes)
            while self._free and self._held > self._limit:
                self._free.pop()
                self._held -= self.block_bytes

    def trim(self, keep_bytes: int = 0) -> None:
        """Gives free blocks beyond ``keep_bytes`` back to the system."""
        with self._changed:
            while self._free and self._held > keep_bytes:
                self._free.pop()
                self._held -= self.block_bytes
            self._changed.notify_all()
