"""What all processes must agree on before a byte is written or read: the plan and the place.

Each process plans by itself, with no message; here the plans are compared, by digest first and
leaf by leaf only to say what differs.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from jaxckpt.errors import NotSharedError, ProcessesDisagreeError, StorageError
from jaxckpt.io.coordinator import WAIT_SECS, Operation
from jaxckpt.io.store import Store, parent_of

_MOST_TOLD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What must be the same on every process.

    Attributes:
        digest: of all of it.
        leaves: for each leaf its name and, in words, what it is, its sharding and its value.
    """

    digest: str
    leaves: list[tuple[str, str, str | None, str | None]]


def check_shared(store: Store, operation: Operation, place: str) -> None:
    """Whether this process sees the directory that the primary made.

    Raises:
        NotSharedError: it does not.
    """
    if store.stat(place) is None:
        with contextlib.suppress(FileNotFoundError, StorageError):
            store.list_dir(parent_of(place))  # a network file system may have to be asked twice
        if store.stat(place) is None:
            raise NotSharedError(
                place, operation.process_index, "the directory that process 0 made"
            )


def agree(
    operation: Operation, own: Fingerprint, word: str = "", timeout_secs: float = WAIT_SECS
) -> str:
    """Blocks until all processes have the same plan; returns the primary's ``word``.

    Every process must call it.

    Raises:
        ProcessesDisagreeError: names the first leaf that differs, and how.
    """
    if operation.alone:
        return word

    def compare(told: list[bytes]) -> bytes:
        same = all(word == told[0] for word in told)
        return json.dumps([same, word]).encode()

    def refuse(told: list[bytes]) -> bytes:
        trees = [json.loads(zlib.decompress(tree)) for tree in told]
        raise ProcessesDisagreeError(operation.what, _difference(trees))

    digest = own.digest.encode()
    answer = operation.meet("the same everywhere", digest, compare, timeout_secs)
    same, shared = json.loads(answer)
    if not same:
        told = zlib.compress(json.dumps(own.leaves).encode())
        if len(told) > _MOST_TOLD_BYTES:
            told = zlib.compress(b"[]")
        operation.meet("what differs", told, refuse)
    return shared


def _difference(trees: list[list[list[Any]]]) -> str:
    for process, tree in enumerate(trees[1:], 1):
        first = {name: rest for name, *rest in trees[0]}
        other = {name: rest for name, *rest in tree}
        for name, rest in first.items():
            if name not in other:
                return f"leaf '{name}' is on process 0 and not on process {process}"
            for what, a, b in zip(("", "sharding ", "value "), rest, other[name], strict=True):
                if a != b:
                    return _say(name, process, what, a, b)
        for name in other:
            if name not in first:
                return f"leaf '{name}' is on process {process} and not on process 0"
    return "the leaves are the same, and the plans are not: the devices differ"


def _say(name: str, process: int, what: str, a: object, b: object) -> str:
    advice = ""
    if what == "value ":
        advice = (
            ". A value of Python or numpy and an array on one process's own devices are stored "
            "once for all: make it the same everywhere, or a global array with a part for each"
        )
    return (
        f"leaf '{name}' has {what}{a!s:.200} on process 0, {b!s:.200} on process {process}{advice}"
    )
