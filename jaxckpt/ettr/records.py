"""The records of a run's journal: one JSON object in a line. `docs/journal.md` is the text to it.

What is read comes from a file that nobody vouches for: every line and field is checked, and a line
that is torn or damaged is counted and passed over, since the others are as good as before. Kinds
and fields that are not known here are those of a newer version, and passed over too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxckpt.format import strictjson
from jaxckpt.format.frame import FormatError
from jaxckpt.format.names import MAX_STEP

JOURNAL_NAME = "journal.jsonl"
JOURNAL_FORMAT = 1
MAX_JOURNAL_BYTES = 64 << 20
"""A journal is not written beyond this, and not read beyond it."""
MAX_LINE_BYTES = 4096
MAX_TEXT = 200
MAX_REMOVED = 64
_MAX_SECS = 1e11
_MAX_COUNT = 1 << 62


@dataclass(frozen=True, slots=True)
class Record:
    """One line.

    Attributes:
        session: the process's life that wrote it, in hex.
        t: seconds since that session's start, on its monotonic clock.
        kind: what happened.
        facts: the kind's fields; those that are not required may be missing.
    """

    session: str
    t: float
    kind: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """What a journal's file holds.

    Attributes:
        records: in the order of the file.
        skipped: lines that were torn or damaged.
    """

    records: tuple[Record, ...]
    skipped: int


def _is_secs(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= _MAX_SECS and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_step(value: Any) -> bool:
    return _is_count(value) and value <= MAX_STEP


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_step, value))


_Check = Callable[[Any], bool]
# For each kind its fields; those with a question mark need not be there.
KINDS: dict[str, dict[str, _Check]] = {
    "start": {
        "wall": _is_secs,
        "version?": _is_text,
        "format?": _is_count,
        "processes?": _is_count,
        "devices?": _is_count,
    },
    "steps": {"first": _is_step, "last": _is_step, "secs": _is_secs},
    "save": {
        "step": _is_step,
        "stall": _is_secs,
        "waited?": _is_secs,
        "bytes?": _is_count,
        "why?": _is_text,
        "lazy?": _is_flag,
    },
    "durable": {"step": _is_step, "secs?": _is_secs, "write_secs?": _is_secs, "bytes?": _is_count},
    "dropped": {"step": _is_step, "newer?": _is_step},
    "failed": {"step": _is_step, "error?": _is_text},
    "removed": {"steps": _is_steps},
    "restore": {"step": _is_step, "secs": _is_secs, "bytes?": _is_count},
    "preempted": {},
    "choice": {"interval_secs": _is_secs, "why?": _is_text},
    "full": {},
    "end": {},
}


_FIELDS = {
    kind: tuple(
        (name.removesuffix("?"), not name.endswith("?"), check) for name, check in f.items()
    )
    for kind, f in KINDS.items()
}


def encode(record: Record) -> bytes:
    """A record's line. Text and lists are cut to what a reader takes; times to microseconds.

    Raises:
        ValueError: the kind is unknown, or a field is missing or of another type.
    """
    facts = {name: _shortened(value) for name, value in record.facts.items() if value is not None}
    wrong = _problem(record.kind, facts)
    if wrong or record.kind not in KINDS:
        raise ValueError(f"a journal's record {record.kind!r}: {wrong or 'no such kind'}")
    unknown = set(facts) - {name for name, _, _ in _FIELDS[record.kind]}
    if unknown:
        raise ValueError(f"a journal's record {record.kind!r}: no such fields: {sorted(unknown)}")
    line = {"t": _shortened(record.t), "e": record.kind, "s": record.session, **facts}
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def encode_steps(session: str, t: float, first: int, last: int, secs: float) -> bytes:
    """The line of a record ``steps``, as `encode` has it, in a tenth of the time.

    It is the one that is written in the middle of training.
    """
    return (
        f'{{"t":{round(t, 6)},"e":"steps","s":"{session}","first":{first},"last":{last},'
        f'"secs":{round(secs, 6)}}}\n'
    ).encode()


def _shortened(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return value[:MAX_REMOVED] if isinstance(value, list) else value


def parse_journal(data: bytes) -> Journal:
    """The records of a file's bytes, of which the caller has bounded the size."""
    records: list[Record] = []
    skipped = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = _parse_line(line)
        except FormatError:
            skipped += 1
            continue
        if record is not None:
            records.append(record)
    return Journal(tuple(records), skipped)


def _parse_line(line: bytes) -> Record | None:
    found = strictjson.parse(line, "a line of the journal", MAX_LINE_BYTES)
    if not isinstance(found, dict):
        raise FormatError("a line of the journal is no object")
    kind, session, t = found.get("e"), found.get("s"), found.get("t")
    if not (_is_text(kind) and _is_text(session) and _is_secs(t)) or t is None:
        raise FormatError("a line of the journal lacks its kind, session or time")
    if kind not in KINDS:
        return None
    facts = {name: found[name] for name, _, _ in _FIELDS[kind] if name in found}
    wrong = _problem(kind, facts)
    if wrong:
        raise FormatError(f"a line of the journal: {wrong}")
    return Record(str(session), float(t), str(kind), facts)


def _problem(kind: str, facts: Mapping[str, Any]) -> str:
    for name, required, check in _FIELDS.get(kind, ()):
        if name not in facts:
            if required:
                return f"no {name}"
        elif not check(facts[name]):
            return f"{name} is {facts[name]!r}"
    if kind == "steps" and facts["last"] <= facts["first"]:
        return "its steps do not go forward"
    return ""
