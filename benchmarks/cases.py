"""What is measured: one way to save a state and to restore it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SAVE, RESTORE = "save", "restore"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to write and to read, under a name.

    Attributes:
        name: on the command line and in results.
        label: in tables and in the picture.
        settings: what a reader needs to repeat it.
        save: writes to a new path; returns once that is durable.
        restore: reads it; returns once all of it is in memory.
        verify: fails unless a restore gave back what was saved.
        operations: which of the two are timed.
    """

    name: str
    label: str
    settings: str
    save: Callable[[str], None]
    restore: Callable[[str], Any]
    verify: Callable[[Any], None]
    operations: tuple[str, ...] = (SAVE, RESTORE)
