"""From the records of a journal to the figures of a run. `docs/journal.md` defines each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from jaxckpt.ettr.figures import KINDS, Choice, Restart, SaveEvent, Segment, WriteEvent, spread_of
from jaxckpt.ettr.records import Journal, Record
from jaxckpt.ettr.report import RunReport
from jaxckpt.ettr.sessions import Session, lay_out
from jaxckpt.ettr.work import Losses, Stretch, work_of

_SAME_MOMENT_SECS = 1e-4


def account(journal: Journal) -> RunReport:
    """Adds a journal up. One without any session gives a report of no time at all."""
    found = lay_out(journal)
    sessions = found.trained
    stretches, losses = work_of(sessions)
    saves = [_save(s, r) for s in sessions for r in s.of("save")]
    writes = [_write(s, r) for s in sessions for r in s.of("durable")]
    restores = [r for s in sessions for r in s.of("restore")]
    time = _split(sessions, stretches)
    span = sum(s.span for s in sessions)
    failures = sum(not s.ended and not s.preempted for s in sessions[:-1])
    newest = sessions[-1].start.facts if sessions else {}
    counted = [s for s in stretches if not s.lost]
    return RunReport(
        began=sessions[0].start.facts["wall"] if sessions else 0.0,
        wall_secs=sum(time.values()),
        training_secs=time["training"],
        lost_secs=time["lost"],
        stall_secs=time["stall"],
        restore_secs=time["restore"],
        down_secs=time["down"],
        other_secs=time["other"],
        waited_secs=min(sum(s.waited_secs for s in saves), time["stall"]),
        steps=sum(s.steps for s in counted),
        lost_steps=sum(s.steps for s in stretches if s.lost),
        last_step=max((s.last for s in counted), default=None),
        sessions=len(sessions),
        onlookers=found.onlookers,
        durable=len(writes),
        dropped=_count(sessions, "dropped"),
        failed=_count(sessions, "failed"),
        stall=spread_of(s.stall_secs for s in saves),
        write=spread_of(w.secs for w in writes),
        restore=spread_of(r.facts["secs"] for r in restores),
        durable_interval=spread_of(_intervals(sessions)),
        stage_bytes_per_sec=_rate((s.nbytes, s.stall_secs - s.waited_secs) for s in saves),
        write_bytes_per_sec=_rate((w.nbytes, w.secs) for w in writes),
        restore_bytes_per_sec=_rate((r.facts.get("bytes", 0), r.facts["secs"]) for r in restores),
        failures=failures,
        mtbf_secs=span / failures if failures else None,
        processes=newest.get("processes"),
        devices=newest.get("devices"),
        version=newest.get("version"),
        skipped_lines=journal.skipped + found.strays,
        full=_count(sessions, "full") > 0,
        restarts=_restarts(sessions, losses),
        choices=tuple(_choice(s, r) for s in sessions for r in s.of("choice")),
        saves=tuple(saves),
        writes=tuple(writes),
        timeline=_timeline(sessions, stretches, saves, writes),
    )


def _split(sessions: Sequence[Session], stretches: Sequence[Stretch]) -> dict[str, float]:
    """The time of each kind; together it is the wall time, whatever the records say."""
    time: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    work = [{"training": 0.0, "lost": 0.0} for _ in sessions]
    for stretch in stretches:
        work[stretch.session]["lost" if stretch.lost else "training"] += stretch.secs
    end = 0.0
    for session, done in zip(sessions, work, strict=True):
        time["down"] += session.offset - end
        end = session.end
        parts = {
            "restore": sum(float(r.facts["secs"]) for r in session.of("restore")),
            "stall": sum(float(r.facts["stall"]) for r in session.of("save")),
            **done,
        }
        total = sum(parts.values())
        # Records that overlap are none of ours; a share of each then, so that nothing is negative.
        factor = session.span / total if total > session.span else 1.0
        for kind, secs in parts.items():
            time[kind] += factor * secs
        time["other"] += max(session.span - total, 0.0)
    return time


def _save(session: Session, record: Record) -> SaveEvent:
    facts = record.facts
    waited = min(float(facts.get("waited", 0.0)), float(facts["stall"]))
    return SaveEvent(
        session.offset + record.t,
        facts["step"],
        float(facts["stall"]),
        waited,
        facts.get("bytes", 0),
    )


def _write(session: Session, record: Record) -> WriteEvent:
    secs = min(float(record.facts.get("write_secs", 0.0)), record.t)
    nbytes = record.facts.get("bytes", 0)
    return WriteEvent(session.offset + record.t, record.facts["step"], secs, nbytes)


def _choice(session: Session, record: Record) -> Choice:
    facts: Any = record.facts
    return Choice(session.offset + record.t, float(facts["interval_secs"]), facts.get("why", ""))


def _count(sessions: Sequence[Session], kind: str) -> int:
    return sum(1 for s in sessions for _ in s.of(kind))


def _intervals(sessions: Sequence[Session]) -> list[float]:
    found: list[float] = []
    for session in sessions:
        times = sorted(r.t for r in session.of("durable"))
        found.extend(b - a for a, b in itertools.pairwise(times))
    return found


def _rate(parts: Iterable[tuple[int, float]]) -> float | None:
    """Bytes per second of those parts of which both are known."""
    known = [(nbytes, secs) for nbytes, secs in parts if nbytes and secs > 0]
    secs = sum(s for _, s in known)
    return sum(n for n, _ in known) / secs if known else None


def _restarts(sessions: Sequence[Session], losses: Sequence[Losses]) -> tuple[Restart, ...]:
    found: list[Restart] = []
    for before, session, lost in zip(sessions, sessions[1:], losses[1:], strict=False):
        first = next(session.of("steps"), None)
        found.append(
            Restart(
                at=before.end,
                down_secs=session.offset - before.end,
                step=None if first is None else int(first.facts["first"]),
                lost_steps=lost.steps,
                lost_secs=lost.secs,
                back_secs=None if first is None else session.offset + first.t - before.end,
                clean=before.ended,
                preempted=before.preempted,
            )
        )
    return tuple(found)


def _timeline(
    sessions: Sequence[Session],
    stretches: Sequence[Stretch],
    saves: Sequence[SaveEvent],
    writes: Sequence[WriteEvent],
) -> tuple[Segment, ...]:
    found = [Segment("lost" if s.lost else "training", s.begin, s.end) for s in stretches]
    found += [Segment("stall", s.at, s.at + s.stall_secs) for s in saves]
    found += [Segment("write", w.at - w.secs, w.at) for w in writes]
    for session in sessions:
        for record in session.of("restore"):
            at = session.offset + record.t
            found.append(Segment("restore", at, at + float(record.facts["secs"])))
    found += [
        Segment("down", a.end, b.offset)
        for a, b in itertools.pairwise(sessions)
        if b.offset > a.end
    ]
    return _joined(sorted(found, key=lambda s: (s.kind, s.start, s.end)))


def _joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Those of one kind that touch become one; ordered by their start."""
    joined: list[Segment] = []
    for new in segments:
        if joined and joined[-1].kind == new.kind:
            last = joined[-1]
            if new.start - last.end <= _SAME_MOMENT_SECS:
                joined[-1] = Segment(last.kind, last.start, max(last.end, new.end))
                continue
        joined.append(new)
    return tuple(sorted(joined, key=lambda s: (s.start, s.kind)))
