"""Which of the steps that a run made count, and which were made again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from jaxckpt.ettr.sessions import Session


@dataclass(slots=True)
class Stretch:
    """Steps that were made one after the other.

    Attributes:
        session: the number of the session that made them.
        first, last: training went from one to the other.
        begin, end: seconds of the run.
        lost: whether they were made again later, from a step before them.
    """

    session: int
    first: int
    last: int
    begin: float
    end: float
    lost: bool = False

    @property
    def steps(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def secs(self) -> float:
        """The time that they took."""
        return self.end - self.begin


@dataclass(slots=True)
class Losses:
    """What a session took back of those before it by beginning at an old step."""

    steps: int = 0
    secs: float = 0.0


def work_of(sessions: Sequence[Session]) -> tuple[list[Stretch], list[Losses]]:
    """All stretches, and what each session took back.

    Training that begins at a step takes back all that was done beyond that step before. A
    stretch that is taken back in part is cut in proportion to its steps.
    """
    rates = [_secs_per_step(session) for session in sessions]
    known = [rate for rate in rates if rate is not None]
    usual = statistics.median(known) if known else None
    alive: list[Stretch] = []  # their steps ascend, so only the newest can be taken back
    lost: list[Stretch] = []
    losses = [Losses() for _ in sessions]
    for number, session in enumerate(sessions):
        for i, record in enumerate(session.of("steps")):
            first, last = int(record.facts["first"]), int(record.facts["last"])
            while alive and alive[-1].last > first:
                back = alive.pop()
                if back.first < first:
                    kept, back = _cut(back, first)
                    alive.append(kept)
                back.lost = True
                lost.append(back)
                if i == 0:
                    losses[number].steps += back.steps
                    losses[number].secs += back.secs
            secs = min(float(record.facts["secs"]), record.t)
            if i == 0:
                secs = _without_start_up(secs, last - first, rates[number] or usual)
            end = session.offset + record.t
            alive.append(Stretch(number, first, last, end - secs, end))
    return alive + lost, losses


def _cut(stretch: Stretch, step: int) -> tuple[Stretch, Stretch]:
    share = (step - stretch.first) / stretch.steps
    middle = min(stretch.begin + share * stretch.secs, stretch.end)
    before = Stretch(stretch.session, stretch.first, step, stretch.begin, middle)
    return before, Stretch(stretch.session, step, stretch.last, middle, stretch.end)


def _secs_per_step(session: Session) -> float | None:
    """The usual time of a step, without the first record, which holds compilation."""
    rates = [
        float(r.facts["secs"]) / (r.facts["last"] - r.facts["first"]) for r in session.of("steps")
    ]
    return statistics.median(rates[1:]) if len(rates) > 1 else None


def _without_start_up(secs: float, steps: int, secs_per_step: float | None) -> float:
    return secs if secs_per_step is None else min(secs, steps * secs_per_step)
