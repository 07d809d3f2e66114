"""Keeps the cyclic garbage collector out of code that makes many small values and no cycles.

A state of 10,000 leaves is some 100,000 small values; each time the collector looks through them
and through everything else in the process, a save or restore stands still. Nothing is freed
later than it would be by a slow call: reference counts work as always.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_depth = 0
_was_enabled = False


def calm(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: no automatic collection while the function runs, on whatever thread."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        _enter()
        try:
            return function(*args, **kwargs)
        finally:
            _leave()

    return wrapped


def _enter() -> None:
    global _depth, _was_enabled  # noqa: PLW0603  (the collector is one for the process, too)
    with _lock:
        if _depth == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _depth += 1


def _leave() -> None:
    global _depth  # noqa: PLW0603
    with _lock:
        _depth -= 1
        if _depth == 0 and _was_enabled:
            gc.enable()
