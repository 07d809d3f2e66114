"""The figures of a run, and their form as JSON. `docs/journal.md` defines each."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

REPORT_FORMAT = 1
KINDS = ("training", "lost", "stall", "restore", "down", "other")
"""The kinds of time that the wall time is split into."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of several measurements; ``median`` and ``largest`` are None where there are none."""

    count: int
    total: float
    median: float | None
    largest: float | None


def spread_of(values: Iterable[float]) -> Spread:
    """The figures of some values."""
    found = list(values)
    if not found:
        return Spread(0, 0.0, None, None)
    return Spread(len(found), sum(found), statistics.median(found), max(found))


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the run's time, in seconds since its start.

    ``kind`` is one of `KINDS` but ``other``, or ``write``: writing beside the training.
    """

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SaveEvent:
    """A call of `save` that saved: when it began, how long it blocked, bytes of the state."""

    at: float
    step: int
    stall_secs: float
    waited_secs: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """A step that became durable at ``at``; ``secs`` are those of writing."""

    at: float
    step: int
    secs: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A session that followed another one.

    Attributes:
        at: the last sign of life of the session before, in seconds of the run.
        down_secs: from then to the start of this one.
        step: from which training went on; None if it never did.
        lost_steps, lost_secs: work of earlier sessions that was done again.
        back_secs: from ``at`` until training had made its first step again; None if it never did.
        clean: the session before was closed as it should be.
        preempted: the session before was asked to stop.
    """

    at: float
    down_secs: float
    step: int | None
    lost_steps: int
    lost_secs: float
    back_secs: float | None
    clean: bool
    preempted: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """An interval that the autopilot chose, at ``at`` seconds of the run, and why."""

    at: float
    interval_secs: float
    why: str


@dataclass(frozen=True)
class Figures:
    """What a run's journal adds up to. All times in seconds, ``at`` since the run's start.

    Attributes:
        began: seconds since 1970 at the run's start, by the wall clock.
        wall_secs: from the run's start to its last sign of life.
        training_secs, lost_secs, stall_secs, restore_secs, down_secs, other_secs: ``wall_secs``
            without remainder: steps that count, steps that were made again, blocked in `save`,
            restoring, between sessions, all else (start-up, compilation, evaluation).
        waited_secs: of ``stall_secs``, waiting for room in the budget or for an earlier save.
        steps, lost_steps: how many count, and how many were made again.
        last_step: the step that training has reached; None before the first.
        sessions, onlookers: how many trained; how many only looked on and are left out.
        durable, dropped, failed: what became of the saves.
        stall, write, restore, durable_interval: per save, written step, restore; and between two
            durable steps of one session.
        stage_bytes_per_sec, write_bytes_per_sec, restore_bytes_per_sec: None where not known.
        failures: sessions that were not closed nor asked to stop, and followed by another.
        mtbf_secs: time in sessions for each failure; None without any.
        processes, devices, version: as the last session said.
        skipped_lines: of the journal, torn or damaged.
        full: the journal reached its limit, and what came later is not in it.
    """

    began: float
    wall_secs: float
    training_secs: float
    lost_secs: float
    stall_secs: float
    restore_secs: float
    down_secs: float
    other_secs: float
    waited_secs: float
    steps: int
    lost_steps: int
    last_step: int | None
    sessions: int
    onlookers: int
    durable: int
    dropped: int
    failed: int
    stall: Spread
    write: Spread
    restore: Spread
    durable_interval: Spread
    stage_bytes_per_sec: float | None
    write_bytes_per_sec: float | None
    restore_bytes_per_sec: float | None
    failures: int
    mtbf_secs: float | None
    processes: int | None
    devices: int | None
    version: str | None
    skipped_lines: int
    full: bool
    restarts: tuple[Restart, ...]
    choices: tuple[Choice, ...]
    saves: tuple[SaveEvent, ...]
    writes: tuple[WriteEvent, ...]
    timeline: tuple[Segment, ...]

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: time of steps that count over wall time."""
        return self.training_secs / self.wall_secs if self.wall_secs else None

    @property
    def stall_share(self) -> float | None:
        """The share of the wall time in which `save` blocked."""
        return self.stall_secs / self.wall_secs if self.wall_secs else None

    def secs_of(self, kind: str) -> float:
        """The time of one of `KINDS`."""
        return float(getattr(self, f"{kind}_secs"))

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON has them; `docs/journal.md` lists them.

        The events one by one and the timeline are not among them.
        """
        return {
            "format": REPORT_FORMAT,
            "began": self.began,
            "wall_secs": self.wall_secs,
            "ettr": self.ettr,
            "stall_share": self.stall_share,
            "secs": {kind: self.secs_of(kind) for kind in KINDS} | {"waited": self.waited_secs},
            "steps": {"counted": self.steps, "lost": self.lost_steps, "last": self.last_step},
            "saves": {
                "begun": self.stall.count,
                "durable": self.durable,
                "dropped": self.dropped,
                "failed": self.failed,
            },
            "spreads": {
                "stall": asdict(self.stall),
                "write": asdict(self.write),
                "restore": asdict(self.restore),
                "durable_interval": asdict(self.durable_interval),
            },
            "bytes_per_sec": {
                "stage": self.stage_bytes_per_sec,
                "write": self.write_bytes_per_sec,
                "restore": self.restore_bytes_per_sec,
            },
            "sessions": self.sessions,
            "failures": self.failures,
            "mtbf_secs": self.mtbf_secs,
            "restarts": [asdict(restart) for restart in self.restarts],
            "choices": [asdict(choice) for choice in self.choices],
            "job": {
                "processes": self.processes,
                "devices": self.devices,
                "version": self.version,
            },
            "journal": {
                "skipped_lines": self.skipped_lines,
                "full": self.full,
                "onlookers": self.onlookers,
            },
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)
