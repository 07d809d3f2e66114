"""What a directory is: an item, a step, a run; and which steps of a run are whole."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from jaxckpt.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    FormatVersionError,
    InvalidOptionsError,
    NotACheckpointError,
    StorageError,
)
from jaxckpt.format import orbaxmeta
from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_JSON_BYTES
from jaxckpt.format.names import parse_step
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.store import Store, join, read_file
from jaxckpt.opened import check_files, has_sidecar, read_sidecar

_PREFERRED_ITEMS = ("default", "state")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MARKER_NAMES = frozenset({orbaxmeta.STEP_NAME, "commit_success.txt", "descriptor", "metrics"})


def checked_path(path: Any) -> str:
    """An absolute local path as text, links in it followed: what lies below must be none.

    Raises:
        InvalidOptionsError: it is empty, no path, or a URL.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOptionsError("path", path, "a path")
    # pathlib makes one slash of two, so a URL may come as gs:/bucket.
    if _URL.match(text):
        raise InvalidOptionsError("path", text, "a directory of a mounted file system, not a URL")
    return os.path.realpath(text)


def is_item(store: Store, path: str) -> bool:
    """Whether a directory holds one saved state."""
    return has_sidecar(store, path) or store.stat(join(path, orbaxmeta.TREE_NAME)) is not None


def find_item(store: Store, path: str) -> str:
    """The item that a path means: itself, or the state inside a step.

    Raises:
        CheckpointNotFoundError: there is nothing.
        NotACheckpointError: it is something else; the error says what.
    """
    found = store.stat(path)
    if found is None:
        raise CheckpointNotFoundError(path)
    if not found.is_dir:
        raise NotACheckpointError(path, "it is a file", "Give the checkpoint's directory.")
    if is_item(store, path):
        return path
    names = sorted(n for n in store.list_dir(path) if not n.startswith("."))
    items = [n for n in names if _is_item_below(store, path, n)]
    for name in _PREFERRED_ITEMS:
        if name in items and not _is_run(names):
            return join(path, name)
    if len(items) == 1 and not _is_run(names):
        return join(path, items[0])
    if _is_run(names):
        steps = sorted(s for s in map(parse_step, names) if s is not None)
        raise NotACheckpointError(
            path,
            f"it is a run with the steps {', '.join(map(str, steps[-20:]))}",
            f"Give one of them, for instance {join(path, str(steps[-1]))}, or use "
            "jaxckpt.Checkpointer.",
        )
    if items:
        raise NotACheckpointError(
            path, f"it holds the items {', '.join(items)}", "Give the directory of one of them."
        )
    what = "it is an empty directory" if not names else f"it holds {', '.join(names[:10])}"
    raise NotACheckpointError(path, what, "Give the directory of a saved state or of a step.")


def _is_item_below(store: Store, path: str, name: str) -> bool:
    found = store.stat(join(path, name))
    return found is not None and found.is_dir and is_item(store, join(path, name))


def foreign_content(store: Store, path: str) -> str | None:
    """Why a directory must not be replaced: what it holds that no checkpoint has; else None."""
    found = store.stat(path)
    if found is None or not found.is_dir:
        return "it is a file" if found else None
    names = store.list_dir(path)
    if not names or is_item(store, path):
        return None
    if orbaxmeta.STEP_NAME not in names:
        return f"it holds {', '.join(sorted(names)[:10])}"
    name = join(path, orbaxmeta.STEP_NAME)
    try:
        handlers = orbaxmeta.decode_step(read_file(store, name, MAX_JSON_BYTES, path), name)
    except ValueError as error:
        return str(error)
    items = set(handlers) if isinstance(handlers, dict) else set[str]()
    others = sorted(set(names) - items - _MARKER_NAMES)
    return f"it holds {', '.join(others[:10])} beside a step" if others else None


def _is_run(names: list[str]) -> bool:
    return any(parse_step(n) is not None for n in names)


def step_problem(store: Store, path: str) -> str | None:
    """Why a step directory is not whole; None when it is, as far as names and sizes tell."""
    name = join(path, orbaxmeta.STEP_NAME)
    try:
        handlers = orbaxmeta.decode_step(read_file(store, name, MAX_JSON_BYTES, path), name)
        if handlers is None:
            return f"{name} says that it was never committed"
        items = [path] if isinstance(handlers, str) else [join(path, n) for n in handlers]
        if not handlers:
            names = store.list_dir(path)
            items = [join(path, n) for n in names if _is_item_below(store, path, n)]
        if not items:
            return f"{path} has no item"
        for item in items:
            if has_sidecar(store, item):
                check_files(store, item, read_sidecar(store, item))
            elif not _looks_whole(store, item):
                return f"{item} has no metadata"
    except FormatVersionError:
        return None  # it is there and whole for a newer jaxckpt; opening it says so
    except FileNotFoundError:
        return f"{name} is missing"
    except (DamagedCheckpointError, FormatError, StorageError, ValueError) as error:
        return str(error)
    return None


def _looks_whole(store: Store, item: str) -> bool:
    """An item of orbax's own: its metadata, whatever the handler calls it, is not empty."""
    found = store.stat(item)
    if found is None or not found.is_dir:
        return False
    for name in (orbaxmeta.TREE_NAME, orbaxmeta.JSON_ITEM_NAME):
        file = store.stat(join(item, name))
        if file is not None:
            return file.size > 0
    return bool(store.list_dir(item))


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps of a run.

    Attributes:
        whole: ascending; what is listed.
        damaged: directories that have a step's name and content and are not whole, with why.
    """

    whole: list[int]
    damaged: dict[int, str]


def scan_steps(store: Store, run: str) -> RunSteps:
    """Looks at every directory with a step's name; an empty one is no step."""
    found = store.stat(run)
    scan = RunSteps([], {})
    if found is None or not found.is_dir:
        return scan
    for step in sorted(s for s in map(parse_step, store.list_dir(run)) if s is not None):
        path = join(run, str(step))
        problem = step_problem(store, path)
        if problem is None:
            scan.whole.append(step)
            continue
        try:
            if store.list_dir(path):
                scan.damaged[step] = problem
        except (StorageError, FileNotFoundError):
            continue  # a file, or removed by somebody meanwhile
    return scan


def agree_on_steps(operation: Operation, store: Store, run: str) -> RunSteps:
    """The steps as the primary sees them, on every process; every process must call it."""

    def look(_: list[bytes]) -> bytes:
        scan = scan_steps(store, run)
        return json.dumps([scan.whole, list(scan.damaged.items())]).encode()

    whole, damaged = json.loads(operation.meet("steps", decide=look))
    return RunSteps(whole, dict(damaged))
