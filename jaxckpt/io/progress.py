"""How far a save or restore is, in bytes; what shows it is a `Display`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from jaxckpt.io.store import Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Display(Protocol):
    """What shows tallies to people. Its methods may be called from any thread, never raise for
    reasons of its own, and return soon.
    """

    def begin(self, tally: Tally) -> None:
        """A save or restore moves its first bytes."""
        ...

    def end(self, tally: Tally, *, whole: bool) -> None:
        """It is over, with all its bytes moved or without."""
        ...


class Tally:
    """The bytes of one save or restore; as a context manager it ends with the block.

    A display looks at it when it likes: counting costs an addition.

    Args:
        what: it is, for people.
        total_bytes: this process moves; None if that is not known, as with compression.
        display: shows it; None for nobody.

    Attributes:
        what, total_bytes: as given.
    """

    def __init__(self, what: str, total_bytes: int | None, display: Display | None) -> None:
        self.what, self.total_bytes = what, total_bytes
        self._display = display
        self._done = 0
        self._state = "new"
        self._lock = threading.Lock()

    @property
    def done_bytes(self) -> int:
        """Bytes moved so far."""
        return self._done

    def add(self, nbytes: int) -> None:
        """So many bytes were moved; from any thread."""
        if self._display is not None:
            with self._lock:
                self._done += nbytes

    def begin(self) -> None:
        """The first bytes are moved soon; the second call does nothing."""
        if self._passes("new", "begun") and self._display is not None:
            self._display.begin(self)

    def end(self, *, whole: bool) -> None:
        """No byte is moved any more; does nothing if it was not begun, or has ended."""
        if self._passes("begun", "over") and self._display is not None:
            self._display.end(self, whole=whole)

    def _passes(self, before: str, after: str) -> bool:
        with self._lock:
            if self._state != before:
                return False
            self._state = after
            return True

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(whole=error is None)


class CountedWriter:
    """A `Writer` that tells how many bytes it has written.

    Args:
        wrote: told of the bytes of each write that has ended well, by the thread that wrote.
    """

    def __init__(self, writer: Writer, wrote: Callable[[int], None]) -> None:
        self._writer, self._wrote = writer, wrote

    def write_at(self, offset: int, data: Buffer) -> None:
        """See `Writer`."""
        self._writer.write_at(offset, data)
        self._wrote(memoryview(data).nbytes)

    def sync(self) -> None:
        """See `Writer`."""
        self._writer.sync()

    def close(self) -> None:
        """See `Writer`."""
        self._writer.close()
