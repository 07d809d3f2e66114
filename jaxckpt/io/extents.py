"""Writes a data file in large aligned extents while many threads fill it.

The file is cut into windows of one pool block each. Whoever copies bytes to an offset gets the
block of that window (a new lease if it is the first there); the copy that completes a window hands
it to a writer thread, which writes it past the page cache and gives the block back. Values may
cross windows. A copy holds at most the window that it is in and shares the ones at its ends, and a
file is finished by the copy behind its last value; so with J copying threads that begin in the
order of the places at most 2 J + 1 windows are unfinished at a time, and the pool's least number
of blocks is enough to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import BLOCK_BYTES, Writer
from jaxckpt.io.waiting import AbandonedError, wait_for_all

Submit = Callable[[Callable[[], None]], "Future[None]"]


def round_up(n: int, step: int = BLOCK_BYTES) -> int:
    """The next multiple of ``step``."""
    return -(-n // step) * step


class _Window:
    __slots__ = ("block", "filled", "ready")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.block: NDArray[np.uint8] | None = None
        self.filled = 0


class ExtentWriter:
    """One data file being written.

    Args:
        writer: the open file.
        pool: where blocks come from.
        submit: runs a function on a writer thread.
        stopped: says that the save failed; waits for blocks end then.
    """

    def __init__(
        self,
        writer: Writer,
        pool: HostPool,
        submit: Submit,
        stopped: Callable[[], bool],
    ) -> None:
        self._writer, self._pool, self._submit, self._stopped = writer, pool, submit, stopped
        self._windows: dict[int, _Window] = {}
        self._lock = threading.Lock()
        self._pending: list[Future[None]] = []
        self._length: int | None = None

    def pieces(self, offset: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
        """Memory for ``nbytes`` bytes from ``offset``, window by window; each must be filled
        completely before the next is asked for.
        """
        size = self._pool.block_bytes
        end = offset + nbytes
        while offset < end:
            number, inside = divmod(offset, size)
            stop = min(size, inside + end - offset)
            window = self._window(number)
            assert window.block is not None
            yield window.block[inside:stop]
            self._filled(number, window, stop - inside)
            offset += stop - inside

    def fill_zeros(self, offset: int, nbytes: int) -> None:
        """Blocks are used again: a gap must not carry what they held before."""
        for piece in self.pieces(offset, nbytes):
            piece.fill(0)

    def finish(self, length: int) -> None:
        """Says that the file ends at ``length`` (a block multiple).

        Other threads may still be filling what is before it.
        """
        with self._lock:
            self._length = length
            rest = list(self._windows.items())
        for number, window in rest:
            self._write_if_full(number, window)

    @property
    def writes(self) -> list[Future[None]]:
        """The writes handed out so far, to be waited for."""
        return list(self._pending)

    @property
    def unfinished(self) -> int:
        """How many windows were begun and not handed to a writer."""
        with self._lock:
            return len(self._windows)

    def abandon(self) -> None:
        """Waits for the writes under way, and gives back the blocks that will never be full.

        No copy may be running any more. A file must not be closed before this returns: a late
        write would go to whatever the system gave the same handle to.
        """
        wait_for_all(self._pending)
        with self._lock:
            windows, self._windows = list(self._windows.values()), {}
        for window in windows:
            if window.block is not None:
                self._pool.give_back(window.block)
            window.ready.set()

    def _window(self, number: int) -> _Window:
        with self._lock:
            if self._stopped():
                raise AbandonedError
            window = self._windows.get(number)
            mine = window is None
            if window is None:
                window = self._windows[number] = _Window()
        if not mine:
            window.ready.wait()
        else:
            try:
                window.block = self._pool.acquire(self._stopped)
            finally:
                if window.block is None:
                    with self._lock:
                        self._windows.pop(number, None)
                window.ready.set()
        if window.block is None:
            raise AbandonedError
        return window

    def _filled(self, number: int, window: _Window, nbytes: int) -> None:
        with self._lock:
            window.filled += nbytes
        self._write_if_full(number, window)

    def _write_if_full(self, number: int, window: _Window) -> None:
        size = self._pool.block_bytes
        with self._lock:
            want = size
            if self._length is not None:
                want = min(size, self._length - number * size)
            if window.filled < want or number not in self._windows:
                return
            del self._windows[number]
            block = window.block
        assert block is not None
        memory = block

        def write() -> None:
            try:
                if not self._stopped():
                    self._writer.write_at(number * size, memory[:want].data)
            finally:
                self._pool.give_back(memory)

        self._pending.append(self._submit(write))
