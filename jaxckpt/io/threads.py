"""Threads that take tasks, also while the interpreter ends.

The executors of the standard library take no task any more once the main thread has ended, though
a save in the background has still to be written. These threads are daemons: whoever needs the end
of a task waits for it, on a thread that the interpreter waits for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

_Task = Callable[[], None]


class Threads:
    """A group of threads, begun with the first task.

    Args:
        count: how many.
        name: of the threads, for people who look at a stack.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, task: Callable[[], None]) -> Future[None]:
        """Runs a task after those given before, when a thread is free."""
        future: Future[None] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                settle(future, task)

        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            if not self._threads:
                self._begin()
            self._tasks.put(run)
        return future

    def shutdown(self) -> None:
        """Waits for all tasks and ends the threads."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        for number in range(self._count):
            name = f"{self._name}-{number}"
            self._threads.append(threading.Thread(target=_work, args=(self._tasks,), name=name))
        for thread in self._threads:
            thread.daemon = True
            thread.start()


def settle(future: Future[None], task: Callable[[], None]) -> None:
    """Runs a task and gives a future its result."""
    try:
        task()
    except BaseException as error:  # noqa: BLE001  (raised by whoever asks for the result)
        future.set_exception(error)
    else:
        future.set_result(None)


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        task()
        del task  # what it holds must not live until the next one comes
