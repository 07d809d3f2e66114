"""The sessions of a journal on one axis of time.

Inside a session time is that of its monotonic clock. Only the gap between two sessions is taken
from the wall clock, from start to start; a gap that comes out negative, since a clock was set back
or two processes lived at the same time, is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxckpt.ettr.records import Journal, Record

_LASTING = {"save": "stall", "restore": "secs"}


@dataclass(slots=True)
class Session:
    """One process's life.

    Attributes:
        start: its first record.
        records: the others, in the order of the file.
        span: seconds from its start to its last sign of life.
        offset: seconds from the run's start to its own.
        ended: whether it was closed as it should be.
        preempted: whether it was asked to stop.
    """

    start: Record
    records: list[Record] = field(default_factory=list[Record])
    span: float = 0.0
    offset: float = 0.0
    ended: bool = False
    preempted: bool = False

    @property
    def end(self) -> float:
        """The last sign of life, in seconds of the run."""
        return self.offset + self.span

    def of(self, kind: str) -> Iterator[Record]:
        """Its records of one kind."""
        return (r for r in self.records if r.kind == kind)

    def add(self, record: Record) -> None:
        """Takes a record in."""
        self.records.append(record)
        lasted = float(record.facts[_LASTING[record.kind]]) if record.kind in _LASTING else 0.0
        self.span = max(self.span, record.t + lasted)
        self.ended |= record.kind == "end"
        self.preempted |= record.kind == "preempted"


@dataclass(frozen=True, slots=True)
class Sessions:
    """Those that the run is made of.

    Attributes:
        trained: in order, without overlap.
        onlookers: how many only looked at the run while another one trained; they are left out.
        strays: records whose session has no start.
    """

    trained: tuple[Session, ...]
    onlookers: int
    strays: int


def lay_out(journal: Journal) -> Sessions:
    """The sessions, each put behind the one before it."""
    found: dict[str, Session] = {}
    strays = 0
    for record in journal.records:
        if record.kind == "start":
            found.setdefault(record.session, Session(record))
        elif record.session in found:
            found[record.session].add(record)
        else:
            strays += 1
    trained: list[Session] = []
    for session in found.values():
        if trained:
            before = trained[-1]
            gap = session.start.facts["wall"] - before.start.facts["wall"]
            if gap < before.span and not _trains(session):
                continue
            session.offset = before.offset + max(before.span, gap)
        trained.append(session)
    return Sessions(tuple(trained), len(found) - len(trained), strays)


def _trains(session: Session) -> bool:
    return any(r.kind in ("steps", "save") for r in session.records)
