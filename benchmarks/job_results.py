"""All that the jobs of a run found out, its bars and the JSON of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from benchmarks.bars import Bar
from benchmarks.cases import RESTORE, SAVE
from benchmarks.job_cases import (
    ALLGATHER,
    AUTO,
    BROADCAST,
    CASES,
    DIRECT,
    DISK,
    ORBAX,
    ORBAX_BROADCAST,
    SLOW_REPLICATED,
    SLOW_SHARDED,
    UNCHECKED,
    WAYS,
)
from benchmarks.machine import Machine
from benchmarks.measure import WARM_UP, Key, Sample, Summary

ONCE = 0.005
"""As much more or less is still 1.00."""
_LEVEL, _AUTO, _CHECK, _SLOW_GAIN, _SLOW_LOSS = 1.05, 1.10, 1.05, 3.0, 0.95


@dataclass(frozen=True)
class Count:
    """What the processes of one job read or wrote in a case, against the bytes of the state.

    Attributes:
        ratio: of all processes together.
        level: the most that one process moved, against the mean.
        disk: what the processes made this machine's disk read.
    """

    processes: int
    operation: str
    case: str
    ratio: float
    level: float
    disk: float


@dataclass(frozen=True)
class JobResults:
    """One run."""

    machine: Machine
    rate: float
    counted_bytes: int
    sizes: dict[str, int]
    counts: list[Count]
    samples: list[Sample]
    summaries: dict[Key, Summary]
    cold: bool
    seconds: float

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the figures."""
        if self.cold:
            return []
        return ["the system did not let us empty the page cache: restores are not cold"]

    def of(self, state: str, case: str, operation: str = RESTORE) -> float | None:
        """Median seconds."""
        found = self.summaries.get((state, operation, case))
        return found.median if found else None

    def best_way(self, state: str) -> str | None:
        """The fastest forced way."""
        times = {way: self.of(state, way) for way in WAYS}
        present = {way: time for way, time in times.items() if time is not None}
        return min(present, key=present.__getitem__, default=None)


def count_of(
    processes: int, operation: str, case: str, nbytes: int, found: list[dict[str, int]]
) -> Count:
    """From the counts of each process.

    jaxckpt's bytes are counted at its Store, orbax's by the system.
    """
    theirs = case in (ORBAX, ORBAX_BROADCAST)
    names = ("rchar", "wchar") if theirs else ("read", "written")
    moved = [one[names[0 if operation == RESTORE else 1]] for one in found]
    total = sum(moved)
    level = max(moved) * processes / total if total else 0.0
    disk = sum(one["read_bytes"] for one in found)
    return Count(processes, operation, case, total / nbytes, level, disk / nbytes)


def bars(results: JobResults) -> list[Bar]:
    """Every bar for which the run has both sides."""
    found = [*_counted(results.counts)]
    gain = _times(results, SLOW_REPLICATED, DIRECT, ALLGATHER)
    found += _at_least(f"{SLOW_REPLICATED}: allgather faster than direct", gain, _SLOW_GAIN)
    for case in (ALLGATHER, AUTO):
        loss = _times(results, SLOW_SHARDED, DIRECT, case)
        found += _at_least(f"{SLOW_SHARDED}: speed of {case} against direct", loss, _SLOW_LOSS)
    for state in (SLOW_REPLICATED, DISK):
        best = results.best_way(state)
        slower = best and _times(results, state, AUTO, best)
        found += _at_most(f"{state}: time of auto against {best}, the best way", slower, _AUTO)
    for case in (ORBAX, ORBAX_BROADCAST):
        times = _times(results, DISK, case, AUTO)
        found += _at_least(f"{DISK}: auto faster than {CASES[case].label}", times, 1.0)
    check = _times(results, DISK, ALLGATHER, UNCHECKED)
    found += _at_most(f"{DISK}: allgather checked against unchecked", check, _CHECK)
    return found


def _counted(counts: list[Count]) -> list[Bar]:
    found: list[Bar] = []
    for count in counts:
        if count.processes == 1:
            continue
        job = f"R = {count.processes}"
        if count.operation == RESTORE and count.case in (ALLGATHER, BROADCAST):
            found.append(_once(f"{job}: bytes read over bytes of the state, {count.case}", count))
        if count.operation == SAVE and count.case == AUTO:
            found.append(_once(f"{job}: bytes written over bytes of the state", count))
            met = count.level <= _LEVEL
            level = f"{count.level:.3f}"
            what = f"{job}: most bytes written by a process over the mean"
            found.append(Bar(what, f"at most {_LEVEL:.2f}", level, met))
    return sorted(found, key=lambda bar: "written" in bar.what)


def _once(what: str, count: Count) -> Bar:
    return Bar(what, "1.00", f"{count.ratio:.4f}", abs(count.ratio - 1) < ONCE)


def _times(results: JobResults, state: str, slower: str, faster: str) -> float | None:
    one, other = results.of(state, slower), results.of(state, faster)
    return one / other if one is not None and other is not None else None


def _at_least(what: str, measured: float | None, wanted: float) -> list[Bar]:
    if measured is None:
        return []
    return [Bar(what, f"at least {wanted:.2f}x", f"{measured:.2f}x", measured >= wanted)]


def _at_most(what: str, measured: float | str | None, wanted: float) -> list[Bar]:
    if not isinstance(measured, float):
        return []
    return [Bar(what, f"at most {wanted:.2f}x", f"{measured:.2f}x", measured <= wanted)]


def write_json(results: JobResults, path: str) -> None:
    """Everything, raw samples included."""
    content: dict[str, Any] = {
        "machine": dataclasses.asdict(results.machine),
        "seconds": results.seconds,
        "rate": results.rate,
        "counted_bytes": results.counted_bytes,
        "sizes": results.sizes,
        "cases": {name: dataclasses.asdict(case) for name, case in CASES.items()},
        "cold_page_cache": results.cold,
        "notes": results.notes,
        "bars": [dataclasses.asdict(bar) for bar in bars(results)],
        "counts": [dataclasses.asdict(count) for count in results.counts],
        "summaries": [
            {"state": state, "operation": operation, "case": case, **dataclasses.asdict(summary)}
            for (state, operation, case), summary in results.summaries.items()
        ],
        "warm_up_round": WARM_UP,
        "samples": [dataclasses.asdict(sample) for sample in results.samples],
    }
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
