"""The one place with threads: a few that copy, a few that write, and one stop sign."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from jaxckpt.io.threads import Threads
from jaxckpt.io.waiting import AbandonedError, wait_for_all

_MOST_COPY_THREADS = 8  # io/pool.py counts on it
_READ_THREADS = 8


class Engine:
    """Groups of threads, made on first use.

    Copies must not wait behind writes: a save returns when the copies are done. One thread that
    writes in order keeps a local disk busy; parallel file systems like more. Reads take more
    threads than there are cores: each waits for the disk and for fresh pages in turn.

    Args:
        write_threads: threads that write.
    """

    def __init__(self, write_threads: int) -> None:
        cores = os.cpu_count() or 1
        copy_threads = max(2, min(_MOST_COPY_THREADS, cores))
        self._copy = Threads(copy_threads, "jaxckpt-copy")
        self._write = Threads(write_threads, "jaxckpt-write")
        self._read = Threads(max(_READ_THREADS, cores), "jaxckpt-read")
        self._place = Threads(1, "jaxckpt-place")

    def job(self) -> Job:
        """A group of tasks that fails as one."""
        return Job(self._copy, self._write, self._read, self._place)

    def close(self) -> None:
        """Waits for all tasks and ends the threads."""
        for group in (self._copy, self._write, self._read, self._place):
            group.shutdown()


class Job:
    """Tasks of one save or restore: the first error stops those that have not begun."""

    def __init__(
        self,
        copy: Threads,
        write: Threads,
        read: Threads,
        place: Threads,
    ) -> None:
        self._copy, self._write, self._read, self._place = copy, write, read, place
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def stopped(self) -> bool:
        """Whether a task failed."""
        return self._stop.is_set()

    def fail(self, error: BaseException) -> None:
        """Stops the job; the first error counts."""
        with self._lock:
            if self._error is None and not isinstance(error, AbandonedError):
                self._error = error
        self._stop.set()

    def copy(self, task: Callable[[], None]) -> Future[None]:
        """Runs a task on a copy thread."""
        return self._copy.submit(lambda: self._guard(task))

    def read(self, task: Callable[[], None]) -> Future[None]:
        """Runs a task on a read thread."""
        return self._read.submit(lambda: self._guard(task))

    def place(self, task: Callable[[], None]) -> Future[None]:
        """Runs a task after those given here before, one at a time."""
        return self._place.submit(lambda: self._guard(task))

    def write(self, task: Callable[[], None]) -> Future[None]:
        """Runs a task on a write thread; it runs even after a stop, to give its memory back."""
        return self._write.submit(lambda: self._guard(task, always=True))

    def _guard(self, task: Callable[[], None], *, always: bool = False) -> None:
        if self._stop.is_set() and not always:
            return
        try:
            task()
        except BaseException as error:  # noqa: BLE001  (raised again by join)
            self.fail(error)

    def join(self, futures: Iterable[Future[None]], look: Callable[[], None] | None = None) -> None:
        """Waits for all tasks given, then raises the job's first error if there is one.

        An interrupt stops the job and is raised as its error, once no task is running; so does
        what ``look`` raises, which is called about once a second.
        """
        wait_for_all(futures, self.fail, look)
        self.check()

    def check(self) -> None:
        """Raises the job's first error if there is one."""
        if self._error is not None:
            raise self._error
