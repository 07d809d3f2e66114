"""The rounds: every case once a round, in an order that changes, one timed section at a time."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks import disk
from benchmarks.cases import RESTORE, SAVE, Case
from benchmarks.states import State

_ORDER_SEED = 0
WARM_UP = -1
"""The round of the samples that were the first of their kind in the process; not in a median."""

Key = tuple[str, str, str]
"""State, operation and case."""


@dataclass(frozen=True)
class Task:
    """A case for a state, and in how many rounds it takes part."""

    state: State
    case: Case
    rounds: int
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """One timed section.

    Attributes:
        position: the how manieth of its round, since the disk remembers what went before.
    """

    state: str
    operation: str
    case: str
    round: int
    position: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """All rounds of one case."""

    median: float
    best: float
    worst: float
    rounds: int


@dataclass(frozen=True)
class Outcome:
    """What a run measured.

    Attributes:
        cold: whether the page cache could be emptied before every restore.
        notes: what was left out, and why.
    """

    samples: list[Sample]
    cold: bool
    notes: list[str]


class Rounds:
    """Runs tasks in a directory of its own.

    Args:
        folder: on the disk to measure; what is kept for restores lies there until the end.
        must_work: names of cases whose failure ends the run; others are left out with a note.
        say: gets a line for each section.
    """

    def __init__(self, folder: str, must_work: frozenset[str], say: Callable[[str], None]) -> None:
        self._folder, self._must_work, self._say = folder, must_work, say
        self._samples: list[Sample] = []
        self._notes: list[str] = []
        self._cold = True

    def run(self, tasks: Iterable[Task]) -> Outcome:
        """Saves and verifies each task once, then goes round."""
        ready = [task for task in tasks if self._prepare(task)]
        order = random.Random(_ORDER_SEED)
        for number in range(max((task.rounds for task in ready), default=0)):
            sections = [
                (task, operation)
                for task in ready
                for operation in task.operations
                if number < task.rounds
            ]
            order.shuffle(sections)
            for position, (task, operation) in enumerate(sections):
                self._section(task, operation, number, position)
        return Outcome(self._samples, self._cold, self._notes)

    def _prepare(self, task: Task) -> bool:
        """The output that restores read, checked bit for bit; also warms the code up."""
        state, case, kept = task.state, task.case, self._kept(task)
        try:
            self._time(task, SAVE, WARM_UP, 0, lambda: case.save(kept))
            restored = self._time(task, RESTORE, WARM_UP, 0, lambda: case.restore(kept))
            case.verify(restored)
        except Exception as error:
            if case.name in self._must_work:
                raise
            first_line = (str(error).splitlines() or [""])[0].replace(kept, "<output>")
            self._notes.append(
                f"{case.name} is left out of {state.name}: {type(error).__name__}: {first_line}"
            )
            disk.remove(kept)
            return False
        return True

    def _section(self, task: Task, operation: str, number: int, position: int) -> None:
        if operation == RESTORE:
            kept = self._kept(task)
            self._time(task, RESTORE, number, position, lambda: task.case.restore(kept))
            return
        fresh = os.path.join(self._folder, "fresh")
        self._time(task, SAVE, number, position, lambda: task.case.save(fresh))
        disk.remove(fresh)

    def _time(
        self, task: Task, operation: str, number: int, position: int, section: Callable[[], object]
    ) -> object:
        if operation == RESTORE:
            self._cold = disk.settle_cold() and self._cold
        else:
            disk.settle()
        started = time.perf_counter()
        result = section()
        seconds = time.perf_counter() - started
        state, case = task.state.name, task.case.name
        self._samples.append(Sample(state, operation, case, number, position, seconds))
        when = "first" if number == WARM_UP else f"round {number + 1}"
        self._say(f"{when:>8}  {state:<10}  {operation:<7}  {case:<15}  {seconds:8.3f} s")
        return result

    def _kept(self, task: Task) -> str:
        return os.path.join(self._folder, f"{task.state.name}-{task.case.name}")


def summarize(samples: Iterable[Sample]) -> dict[Key, Summary]:
    """Medians and spreads of the rounds."""
    grouped: dict[Key, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.round != WARM_UP:
            grouped[sample.state, sample.operation, sample.case].append(sample.seconds)
    return {
        key: Summary(statistics.median(times), min(times), max(times), len(times))
        for key, times in grouped.items()
    }
