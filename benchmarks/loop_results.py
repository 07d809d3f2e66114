"""What a run of the benchmark of a loop found, its bars, and the JSON of it."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.bars import Bar
from benchmarks.loop_memory import MIB, LoopMemory
from benchmarks.loop_savers import (
    COPY,
    EAGER,
    LABELS,
    LAZY,
    NONE,
    ORBAX,
    ORBAXES,
    OURS,
    TORCHES,
    VIEWS,
    Counts,
)
from benchmarks.loop_stall import DONATED, HABITS, KEPT, LARGE, MANY, Stall
from benchmarks.loop_training import Loop, Training
from benchmarks.machine import Machine
from benchmarks.measure import WARM_UP

CALL, PAID, STAGED, ENDED = "call", "paid", "staged", "ended"
_COPY_TIMES, _MANY_TIMES, _LAZY_SECS = 1.3, 15.0, 0.010
_THROUGHPUT, _WAIT_SECS, _GROWTH = 0.95, 0.001, 1.05


@dataclass(frozen=True)
class Spread:
    """All rounds of one figure."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))


@dataclass(frozen=True)
class LoopResults:
    """One run; a part that was not run is None or empty."""

    machine: Machine
    stalls: list[Stall]
    training: Training | None
    memory: LoopMemory | None
    settings: dict[str, str]
    notes: list[str]

    def states(self) -> list[str]:
        """Of the stalls, in their order."""
        return list(dict.fromkeys(one.state for one in self.stalls))

    def cases(self, state: str, habit: str) -> list[str]:
        """That were measured, in the order in which they are named."""
        there = {s.case for s in self.stalls if (s.state, s.habit) == (state, habit)}
        return [case for case in LABELS if case in there]

    def stall(self, state: str, habit: str, case: str, what: str) -> Spread | None:
        """One of the times above in seconds, without the first saves.

        ``PAID`` is the call and the step after it, beyond what the step takes in the same round
        without a save.
        """
        timed = [
            one
            for one in self.stalls
            if (one.state, one.habit) == (state, habit) and one.round != WARM_UP
        ]
        rounds = [one for one in timed if one.case == case]
        if not rounds:
            return None
        alone = {one.round: one.stepped for one in timed if one.case == NONE}
        times: dict[str, Callable[[Stall], float]] = {
            CALL: lambda one: one.call,
            PAID: lambda one: one.stepped - alone[one.round],
            STAGED: lambda one: one.staged,
            ENDED: lambda one: one.ended,
        }
        return Spread.of(map(times[what], rounds))

    def loops(self, case: str) -> list[Loop]:
        """All rounds of a case."""
        return [one for one in self.training.loops if one.case == case] if self.training else []

    def throughput(self, case: str) -> Spread | None:
        """Steps a second, as a share of those without checkpoints in the same round."""
        alone = {one.round: one.steps / one.secs for one in self.loops(NONE)}
        rounds = self.loops(case)
        return Spread.of(o.steps / o.secs / alone[o.round] for o in rounds) if rounds else None


def from_parts(
    machine: Machine,
    stall: dict[str, Any] | None,
    training: dict[str, Any] | None,
    memory: dict[str, Any] | None,
) -> LoopResults:
    """From what the processes of the parts have printed."""
    settings: dict[str, str] = {}
    notes: list[str] = []
    for part in (stall, training):
        if part:
            settings |= {f"{name} ({_where(part)})": t for name, t in part["settings"].items()}
            notes += [note for note in part["notes"] if note not in notes]
    return LoopResults(
        machine,
        [Stall(**one) for one in stall["stalls"]] if stall else [],
        _training(training) if training else None,
        LoopMemory(**memory) if memory else None,
        settings,
        notes,
    )


def _where(part: dict[str, Any]) -> str:
    return "stall" if "stalls" in part else "loop"


def _training(part: dict[str, Any]) -> Training:
    loops = [
        Loop(**{**one, "counts": Counts(**one["counts"]) if one["counts"] else None})
        for one in part["loops"]
    ]
    return Training(**{**part, "loops": loops, "cores": tuple(part["cores"])})


# -- bars ------------------------------------------------------------------------------------------


def bars(results: LoopResults) -> list[Bar]:
    """Every bar for which the run has both sides."""
    found = [
        *(
            _against(results, (LARGE, habit, CALL), (COPY,), _COPY_TIMES, "a plain copy")
            for habit in HABITS
        ),
        # A call that leaves its copy to the donating step is not compared by itself.
        *(
            _against(results, (LARGE, KEPT, CALL), ORBAXES, 1.0, "the best of orbax async", case)
            for case in (EAGER, VIEWS)
        ),
        _against(results, (LARGE, DONATED, PAID), ORBAXES, 1.0, "the best of orbax async"),
        _against(results, (LARGE, DONATED, CALL), TORCHES, 1.0, "the best of torch DCP async"),
        *(
            _against(results, (state, KEPT, CALL), (ORBAX,), 1 / _MANY_TIMES, "orbax async", case)
            for state in MANY
            for case in (EAGER, VIEWS)
        ),
        _lazy(results),
        *(_throughput(results, case) for case in OURS),
        *(_waiting(results, case) for case in OURS),
    ]
    return [*(bar for bar in found if bar), *(_of_memory(results.memory) if results.memory else [])]


def _against(
    results: LoopResults,
    where: tuple[str, str, str],
    cases: tuple[str, ...],
    wanted: float,
    label: str,
    case: str = EAGER,
) -> Bar | None:
    """``where`` is a state, a habit and a time."""
    state, habit, what = where
    own = results.stall(state, habit, case, what)
    others = [found.median for c in cases if (found := results.stall(state, habit, c, what))]
    if own is None or not others:
        return None
    times = own.median / max(min(others), 1e-9)
    named = "stall" if what == CALL else "stall and the step after it"
    words = f"at most 1/{1 / wanted:g}" if wanted < 1 else f"at most {wanted:g}x"
    measured = f"1/{1 / times:.1f}" if 0 < times < 1 else f"{times:.2f}x"
    return Bar(
        f"{LABELS[case]}, {state}, {habit}: {named}, against {label}",
        words,
        measured,
        times <= wanted,
    )


def _lazy(results: LoopResults) -> Bar | None:
    found = results.stall(LARGE, DONATED, LAZY, CALL)
    if found is None:
        return None
    met = found.median <= _LAZY_SECS
    return Bar(
        f"{LARGE}: call of a lazy save", "at most 10 ms", f"{found.median * 1e3:.2f} ms", met
    )


def _throughput(results: LoopResults, case: str) -> Bar | None:
    share = results.throughput(case)
    if share is None:
        return None
    what = f"loop: throughput of {LABELS[case]} against no checkpoints"
    met = share.median >= _THROUGHPUT
    return Bar(what, f"at least {_THROUGHPUT:g}x", f"{share.median:.3f}x", met)


def _waiting(results: LoopResults, case: str) -> Bar | None:
    each = [
        one.counts.waited_secs / one.saves
        for one in results.loops(case)
        if one.counts and one.counts.waited_secs is not None
    ]
    if not each:
        return None
    what = f"loop: training waits for room, {LABELS[case]}, mean of a save in the worst round"
    return Bar(what, "at most 1 ms", f"{max(each) * 1e3:.2f} ms", max(each) <= _WAIT_SECS)


def _of_memory(memory: LoopMemory) -> list[Bar]:
    growth = memory.late / memory.early
    return [
        Bar(
            f"most memory held in {memory.saves:,} saves",
            f"at most {memory.budget / MIB:.0f} MiB",
            f"{memory.peak / MIB:.0f} MiB",
            memory.peak <= memory.budget,
        ),
        Bar(
            f"resident memory after {memory.saves:,} saves against a tenth of them",
            f"at most {_GROWTH:g}x",
            f"{growth:.3f}x",
            growth <= _GROWTH,
        ),
    ]


def write_json(results: LoopResults, path: str) -> None:
    """Everything, raw samples included."""
    content = {
        **dataclasses.asdict(results),
        "bars": [dataclasses.asdict(bar) for bar in bars(results)],
        "warm_up_round": WARM_UP,
    }
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
        file.write(os.linesep)
