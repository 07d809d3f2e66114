"""A job of many processes played by threads of one: for tests of saves, without starting any.

The devices of this process are dealt to the virtual ones. What they say to one another goes through
a dict, in which waiting takes a thousandth of the time, so that a test can wait for a dead process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from jaxckpt._types import Processes
from jaxckpt.io.coordinator import Coordinator

T = TypeVar("T")
_HURRY = 1e-3


class MemoryKeys:
    """`KeyValues` in memory.

    Args:
        hurry: how much shorter a wait is than what was asked for.
    """

    def __init__(self, hurry: float = _HURRY) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.hurry = hurry

    def put(self, key: str, value: bytes) -> bool:
        """Sets a key for good; False if it is set already."""
        with self.changed:
            if key in self.values:
                return False
            self.values[key] = value
            self.changed.notify_all()
            return True

    def replace(self, key: str, value: bytes) -> None:
        """Sets a key, also anew."""
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, wait_secs: float) -> bytes | None:
        """The value of a key; waits for it."""
        with self.changed:
            if wait_secs > 0:
                self.changed.wait_for(lambda: key in self.values, wait_secs * self.hurry)
            return self.values.get(key)

    def delete(self, prefix: str) -> None:
        """Removes all keys below a prefix."""
        with self.changed:
            for key in [k for k in self.values if k.startswith(prefix + "/")]:
                del self.values[key]

    def keys(self) -> list[str]:
        """All keys that are set."""
        with self.changed:
            return sorted(self.values)


class MutedKeys(MemoryKeys):
    """The keys as one process sees them that may die: then it can say nothing any more.

    Args:
        keys: those of the job.
        dead: raises when the process is dead.
    """

    def __init__(self, keys: MemoryKeys, dead: Callable[[], None]) -> None:
        super().__init__()
        self.values, self.changed, self.hurry = keys.values, keys.changed, keys.hurry
        self._dead = dead

    def put(self, key: str, value: bytes) -> bool:
        """As of the job, unless dead."""
        self._dead()
        return super().put(key, value)

    def replace(self, key: str, value: bytes) -> None:
        """As of the job, unless dead."""
        self._dead()
        super().replace(key, value)


def coordinators(
    count: int,
    devices_each: int,
    keys: MemoryKeys | None = None,
    dead: Callable[[int], None] = lambda _: None,
) -> list[Coordinator]:
    """One for each of ``count`` virtual processes, with so many devices each.

    Args:
        dead: raises when the process of that index is dead.
    """
    shared = keys or MemoryKeys()

    def process_of(device: object) -> int:
        return int(device.id) // devices_each  # pyright: ignore[reportAttributeAccessIssue]

    return [
        Coordinator(Processes(index, count, process_of), MutedKeys(shared, lambda i=index: dead(i)))
        for index in range(count)
    ]


def run_job(count: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """Runs ``work`` for each process index at the same time; what each returned or raised."""

    def guarded(index: int) -> T | BaseException:
        try:
            return work(index)
        except BaseException as error:  # noqa: BLE001  (it is the result)
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(guarded, range(count)))
