"""What all processes must agree on before a save writes: the state's plan, host values, the place.

Each process plans by itself, with no message; here the plans are compared, by digest first and
leaf by leaf only to say what differs.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import crc32c
import numpy as np

from jaxckpt.errors import NotSharedError, ProcessesDisagreeError
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.store import Store, parent_of
from jaxckpt.saving import SavingLeaf, StatePlan

_MOST_TOLD_BYTES = 64 << 20


def agree_on_save(
    store: Store, operation: Operation, state: StatePlan, make_place: Callable[[], str] | None
) -> str:
    """Blocks until all processes have the same plan; returns the directory that they write to.

    Every process must call it.

    Args:
        make_place: the primary's way to the directory, called there only; None where the
            directory is known to all (see `agree_on_plan`).

    Raises:
        ProcessesDisagreeError: trees, shapes, dtypes, shardings or host values differ.
        NotSharedError: a process does not see the primary's directory.
    """
    place = ""
    if operation.process_index == 0 and make_place is not None:
        place = make_place()
    if operation.alone:
        return place
    place = agree_on_plan(operation, state, place)
    if store.stat(place) is None:
        store.list_dir(parent_of(place))  # a network file system may have to be asked twice
        if store.stat(place) is None:
            raise NotSharedError(
                place, operation.process_index, "the directory that process 0 made"
            )
    return place


def agree_on_plan(operation: Operation, state: StatePlan, place: str = "") -> str:
    """Compares the plans of all processes; returns the primary's ``place``."""
    if operation.alone:
        return place
    own = json.dumps([_digest(state), place]).encode()
    words = [json.loads(word) for word in operation.exchange("same state everywhere", own)]
    if any(digest != words[0][0] for digest, _ in words):
        told = zlib.compress(json.dumps(_described(state)).encode())
        if len(told) > _MOST_TOLD_BYTES:
            told = zlib.compress(b"[]")
        trees = operation.exchange("what differs", told)
        problem = _difference([json.loads(zlib.decompress(tree)) for tree in trees])
        raise ProcessesDisagreeError(operation.what, problem)
    return words[0][1]


def _digest(state: StatePlan) -> str:
    total = hashlib.sha256(state.plan.digest())
    total.update(json.dumps(_described(state)).encode())
    return total.hexdigest()


def _described(state: StatePlan) -> list[list[Any]]:
    """What must be the same everywhere, leaf by leaf, with words for it."""
    leaves: list[list[Any]] = []
    for leaf in state.leaves:
        spec = leaf.spec
        if spec.dtype and leaf.described.partition is not None:
            what = f"{spec.impl or spec.dtype}{list(spec.shape)}"
        else:
            what = f"a Python {spec.kind}"
        leaves.append([spec.name, what, spec.sharding, _host_value(leaf)])
    return leaves


def _host_value(leaf: SavingLeaf) -> str | None:
    """Text that tells values apart of which every process has its own copy; one is stored."""
    spec, source = leaf.spec, leaf.described.source
    if not isinstance(source, np.ndarray):
        return spec.value
    if leaf.described.partition is None:
        return spec.value
    data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    return f"crc32c {crc32c.crc32c(data.data):08x}"


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
