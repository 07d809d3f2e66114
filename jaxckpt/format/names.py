"""Names that are printed in one place and parsed in another."""

from __future__ import annotations

import re

_HIDDEN = ".jaxckpt-"
_RANDOM_BYTES = 8
_WORK_NAME = re.compile(r"\.jaxckpt-(tmp|trash|old)-(.+)-([0-9a-f]{16})")
_STEP_NAME = re.compile(r"(?:0|[1-9][0-9]*)")
LEASE_SUFFIX = ".lease"
RANDOM_NAME_BYTES = _RANDOM_BYTES
INDEX_FILE = "d/index"
MAX_STEP = 10**15


def process_dir(process: int) -> str:
    """The directory of a process's own database, relative to the item."""
    return f"ocdbt.process_{process}"


def data_file(number: int) -> str:
    """A data file, relative to the process's directory."""
    return f"d/data-{number:05d}"


def work_name(kind: str, name: str, random: bytes) -> str:
    """A hidden name beside ``name``.

    Args:
        kind: ``tmp`` for one being written, ``trash`` for one being deleted, ``old`` for one that
            is about to be replaced.
        random: 8 bytes that nobody else has.
    """
    return f"{_HIDDEN}{kind}-{name}-{random.hex()}"


def parse_work_name(found: str) -> tuple[str, str] | None:
    """Kind and name of a hidden name; None for every other name."""
    match = _WORK_NAME.fullmatch(found)
    return (match[1], match[2]) if match else None


def parse_step(name: str) -> int | None:
    """The step of a directory name, as orbax's manager names them by default."""
    if not _STEP_NAME.fullmatch(name) or len(name) > 16:
        return None
    return int(name)
