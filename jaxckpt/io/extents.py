"""Collects a data file in large aligned extents while many threads fill it.

The file is cut into windows of one pool block each. Whoever wants to put bytes at an offset gets
the block of that window (a new lease if it is the first there); once all bytes of a window are said
to be final and the file is open, a writer thread writes it past the page cache and gives the block
back. Values may cross windows.

A save that fits into the pool takes all its windows before any is final. One that does not makes
each piece final before it asks for the next: then a copy holds at most the window that it is in and
shares the ones at its ends, and a file is finished by the copy behind its last value; so with J
copying threads that begin in the order of the places at most 2 J + 1 windows are unfinished at a
time, and the pool's least number of blocks is enough to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import BLOCK_BYTES, Writer
from jaxckpt.io.waiting import AbandonedError, wait_for_all

Submit = Callable[[Callable[[], None]], "Future[None]"]


def round_up(n: int, step: int = BLOCK_BYTES) -> int:
    """The next multiple of ``step``."""
    return -(-n // step) * step


class Piece(NamedTuple):
    """A part of a window that a value takes."""

    window: int
    memory: NDArray[np.uint8]


class _Window:
    __slots__ = ("block", "filled", "ready")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.block: NDArray[np.uint8] | None = None
        self.filled = 0


class ExtentWriter:
    """One data file, collected and written.

    Args:
        pool: where blocks come from.
        submit: runs a function on a writer thread.
        stopped: says that the save failed; waits for blocks end then.
        may_grow: see ``HostPool.acquire``.
        wrote: told of every window that was written, with its bytes.
    """

    def __init__(
        self,
        pool: HostPool,
        submit: Submit,
        stopped: Callable[[], bool],
        may_grow: bool,
        wrote: Callable[[int], None],
    ) -> None:
        self._pool, self._submit, self._stopped = pool, submit, stopped
        self._may_grow, self._wrote = may_grow, wrote
        self._writer: Writer | None = None
        self._windows: dict[int, _Window] = {}
        self._lock = threading.Lock()
        self._pending: list[Future[None]] = []
        self._length: int | None = None

    def open(self, writer: Writer) -> None:
        """From now on windows that are full go to the file; those that are go at once."""
        with self._lock:
            self._writer = writer
            full = list(self._windows)
        for number in full:
            self._write_if_full(number)

    def pieces(self, offset: int, nbytes: int) -> Iterator[Piece]:
        """Memory for ``nbytes`` bytes from ``offset``, window by window."""
        size = self._pool.block_bytes
        end = offset + nbytes
        while offset < end:
            number, inside = divmod(offset, size)
            stop = min(size, inside + end - offset)
            yield Piece(number, self._block(number)[inside:stop])
            offset += stop - inside

    def fill(self, piece: Piece) -> None:
        """Says that the bytes of a piece are final; nobody may touch them any more."""
        with self._lock:
            self._windows[piece.window].filled += piece.memory.size
        self._write_if_full(piece.window)

    def fill_zeros(self, offset: int, nbytes: int) -> None:
        """Blocks are used again: a gap must not carry what they held before."""
        for piece in self.pieces(offset, nbytes):
            piece.memory.fill(0)
            self.fill(piece)

    def finish(self, length: int) -> None:
        """Says that the file ends at ``length`` (a block multiple).

        Other threads may still be filling what is before it.
        """
        with self._lock:
            self._length = length
            rest = list(self._windows)
        for number in rest:
            self._write_if_full(number)

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
        """Waits for the writes under way, and gives back the blocks of all other windows.

        Nobody may be filling any more. A file must not be closed before this returns: a late
        write would go to whatever the system gave the same handle to.
        """
        wait_for_all(self._pending)
        with self._lock:
            windows, self._windows = list(self._windows.values()), {}
        for window in windows:
            if window.block is not None:
                self._pool.give_back(window.block)
            window.ready.set()

    def _block(self, number: int) -> NDArray[np.uint8]:
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
                window.block = self._pool.acquire(self._may_grow, self._stopped)
            finally:
                if window.block is None:
                    with self._lock:
                        self._windows.pop(number, None)
                window.ready.set()
        if window.block is None:
            raise AbandonedError
        return window.block

    def _write_if_full(self, number: int) -> None:
        size = self._pool.block_bytes
        with self._lock:
            window, writer = self._windows.get(number), self._writer
            if window is None or writer is None:
                return
            want = size
            if self._length is not None:
                want = min(size, self._length - number * size)
            if window.filled < want:
                return
            del self._windows[number]
            block = window.block
        assert block is not None
        memory = block

        def write() -> None:
            try:
                if not self._stopped():
                    writer.write_at(number * size, memory[:want].data)
                    self._wrote(want)
            finally:
                self._pool.give_back(memory)

        self._pending.append(self._submit(write))
