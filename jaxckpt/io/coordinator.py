"""The Coordinator: how processes of a job tell one another what they did, or why they could not.

Owns the protocol; what carries it is a `KeyValues`: jax's coordination service (`dist.py`), or a
dict in tests. Nothing here looks at a clock: waiting is counted in slices that `KeyValues.get`
takes, so a test can run any number of processes as threads.

Each save or restore is an `Operation` with a number of its own, begun in the same order by every
process. At a point of it every process sends its payload to the primary (process 0), which answers
all of them, or with the reason why not. A process that fails says so under a key that all
others look at while they wait.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from jaxckpt._types import Processes
from jaxckpt.errors import (
    PeerMissingError,
    ProcessesDisagreeError,
    error_from_word,
    error_to_word,
)

WAIT_SECS = 600.0
"""How long a process waits for slower ones that are alive. A dead one ends the job much sooner:
jax's coordination service aborts it after its heartbeat timeout."""
_SLICE_SECS, _LONGEST_SLICE_SECS = 0.5, 5.0
_ASKS_PER_SEC = 1000  # of all waiting processes together
_GRACE_SECS, _GRACE_SHARE = 15.0, 0.1  # for the primary's word that another process is missing
_LEAVING_SECS = 30.0
_KEPT_OPERATIONS = 32  # for a process that lags behind the primary; older keys are deleted


class KeyValues(Protocol):
    """Small values that every process of the job sees."""

    def put(self, key: str, value: bytes) -> bool:
        """Sets a key for good; False if it is set already."""
        ...

    def get(self, key: str, wait_secs: float) -> bytes | None:
        """The value of a key; waits for it so long at most."""
        ...

    def replace(self, key: str, value: bytes) -> None:
        """Sets a key, also anew."""
        ...

    def delete(self, prefix: str) -> None:
        """Removes all keys that begin with ``prefix`` and a slash."""
        ...


class Coordinator:
    """The place of this process in the job.

    Args:
        processes: this process and how many there are; process 0 is the primary. By default it
            is the only one.
        keys: what the processes share; None for a job of one process.
    """

    def __init__(self, processes: Processes | None = None, keys: KeyValues | None = None) -> None:
        self.processes = processes or Processes()
        assert keys is not None or self.processes.count == 1
        self._keys = keys
        self._begun = 0
        self._remembered: list[int] = []  # operations whose keys are there, ascending
        self._open: weakref.WeakValueDictionary[int, Operation] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def process_index(self) -> int:
        """The index of this process."""
        return self.processes.index

    @property
    def process_count(self) -> int:
        """How many there are."""
        return self.processes.count

    @property
    def is_primary(self) -> bool:
        """Whether this process makes what there is one of: directories, the root, the commit."""
        return self.process_index == 0

    def operation(self, what: str) -> Operation:
        """Begins what all processes do together. Every process must call it, in the same order.

        Args:
            what: for messages, and compared between the processes: ``save of step 5 to /run``.
        """
        with self._lock:
            self._begun += 1
            operation = Operation(self, self._keys, self._begun, what)
            if self._keys is not None and self.is_primary:
                self._forget(self._keys)
                self._open[self._begun] = operation
            return operation

    def _forget(self, keys: KeyValues) -> None:
        """Deletes what was said in operations of long ago that nobody is in any more."""
        self._remembered.append(self._begun)
        for number in list(self._remembered):
            if number >= self._begun - _KEPT_OPERATIONS:
                break
            if number not in self._open:  # a save in the background may outlast many others
                keys.delete(f"jaxckpt/{number}")
                self._remembered.remove(number)


class Operation:
    """One save or restore of all processes. Its points are reached by one thread at a time.

    As a context manager it tells the others of an error that leaves the block.

    Attributes:
        what: for messages.
        number: the same on every process, and of no other operation.
    """

    def __init__(
        self, coordinator: Coordinator, keys: KeyValues | None, number: int, what: str
    ) -> None:
        self.what, self.number = what, number
        self.process_index = coordinator.process_index
        self.process_count = coordinator.process_count
        self._keys, self._root = keys, f"jaxckpt/{number}"
        self._points = 0
        self._told: BaseException | None = None  # this process's error, if the others hear of it
        slower = coordinator.process_count / _ASKS_PER_SEC
        self._slice = min(_LONGEST_SLICE_SECS, max(_SLICE_SECS, slower))

    @property
    def alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self._keys is None

    def note(self, doing: str) -> None:
        """What this process does from now on; told to those who miss it."""
        if self._keys is not None:
            self._keys.replace(f"{self._root}/doing/{self.process_index}", doing.encode())

    def meet(
        self,
        point: str,
        payload: bytes = b"",
        decide: Callable[[list[bytes]], bytes] | None = None,
        timeout_secs: float = WAIT_SECS,
        answer_secs: float | None = None,
    ) -> bytes:
        """Blocks until every process has reached the point; every process must.

        Args:
            point: the same on all.
            payload: what this process tells the primary; up to some MB.
            decide: at the primary, makes the answer from all payloads, by process index. What it
                raises is raised by all.
            timeout_secs: how long to wait for other processes.
            answer_secs: how long to wait for the primary, where it may come much later.

        Returns:
            The primary's answer, the same on all.

        Raises:
            PeerFailedError: another process failed; or its error itself, where it is one that
                `error_from_word` makes anew.
            PeerMissingError: some did not come in time; says which, and what they last did.
            ProcessesDisagreeError: some are at another point or in another operation.
        """
        if self._keys is None:
            return decide([payload]) if decide is not None else b""
        keys = self._keys
        self._points += 1
        place = f"{self._root}/{self._points}"
        self.note(f"reached '{point}'")
        head = json.dumps([self.what, point]).encode()
        self._raise_failed(keys)
        if not keys.put(f"{place}/{self.process_index}", head + b"\n" + payload):
            raise ProcessesDisagreeError(
                self.what,
                f"process index {self.process_index} is there twice. Give every process an index "
                "of its own",
            )
        if self.process_index == 0:
            found = self._collect(keys, place, point, head, timeout_secs)
            answer = decide(found) if decide is not None else b""
            keys.put(f"{place}/answer", answer)
            return answer
        grace = max(_GRACE_SECS, _GRACE_SHARE * timeout_secs)
        patience = answer_secs or timeout_secs + grace
        return self._await(keys, f"{place}/answer", point, patience)

    def fail(self, error: BaseException) -> None:
        """Tells all others that this process can not go on; the first one counts.

        This process touches nothing of the operation any more.
        """
        if self._keys is None:
            return
        word = {"process": self.process_index, "error": error_to_word(error)}
        try:
            if self._keys.put(f"{self._root}/failed", json.dumps(word).encode()):
                self._told = error
            self._keys.replace(f"{self._root}/left/{self.process_index}", b"1")
        except Exception as unreachable:  # noqa: BLE001  (the error itself matters more)
            error.add_note(f"the other processes could not be told: {unreachable}")

    def wait_until_left(self, timeout_secs: float = _LEAVING_SECS) -> bool:
        """After a failure: whether all other processes have stopped touching the files.

        Blocks until they say so, so long at most.
        """
        left = timeout_secs
        for process in range(self.process_count):
            name = f"{self._root}/left/{process}"
            while self._keys is not None and process != self.process_index:
                if self._keys.get(name, min(self._slice, max(0.0, left))) is not None:
                    break
                left -= self._slice
                if left <= 0:
                    return False
        return True

    def check(self) -> None:
        """Raises the error of another process that failed; does not block."""
        if self._keys is not None:
            self._raise_failed(self._keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)

    # -- the parts of a meeting --------------------------------------------------------------------

    def _collect(
        self, keys: KeyValues, place: str, point: str, head: bytes, timeout_secs: float
    ) -> list[bytes]:
        """The primary's part: everybody's payload, in bounded time."""
        found: dict[int, bytes] = {}
        left = timeout_secs
        for process in range(self.process_count):
            name = f"{place}/{process}"
            got = keys.get(name, 0.0)
            while got is None and left > 0:
                self._raise_failed(keys)
                got = keys.get(name, min(self._slice, left))
                left -= self._slice
            if got is None:
                continue  # the others may be there: the message names all that are missing
            theirs, _, found[process] = got.partition(b"\n")
            if theirs != head:
                other = " at ".join(map(repr, reversed(json.loads(theirs))))
                raise ProcessesDisagreeError(
                    self.what,
                    f"process {process} is at {other}, process 0 at '{point}' of '{self.what}'. "
                    "Every process must make the same calls in the same order",
                )
        missing = [p for p in range(self.process_count) if p not in found]
        if missing:
            raise self._missing(keys, point, missing, timeout_secs)
        return [found[p] for p in range(self.process_count)]

    def _await(self, keys: KeyValues, key: str, point: str, timeout_secs: float) -> bytes:
        """The others' part: the answer."""
        left = timeout_secs
        while left > 0:
            got = keys.get(key, min(self._slice, left))
            if got is not None:
                return got
            self._raise_failed(keys)
            left -= self._slice
        raise self._missing(keys, point, [0], timeout_secs)

    def _missing(
        self, keys: KeyValues, point: str, processes: Sequence[int], timeout_secs: float
    ) -> PeerMissingError:
        doing: dict[int, str] = {}
        for process in processes:
            word = keys.get(f"{self._root}/doing/{process}", 0.0)
            doing[process] = "has not begun it" if word is None else f"last {word.decode()}"
        return PeerMissingError(self.what, point, timeout_secs, doing)

    def _raise_failed(self, keys: KeyValues) -> None:
        if self._told is not None:  # by another thread, while this one waits for the others
            raise self._told
        word = keys.get(f"{self._root}/failed", 0.0)
        if word is not None:
            said = json.loads(word)
            raise error_from_word(self.what, said["process"], said["error"])
