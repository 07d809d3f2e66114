"""All that a run found out, and the JSON of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from benchmarks.bars import Bar
from benchmarks.cases import Case
from benchmarks.imports import Imports
from benchmarks.machine import Machine
from benchmarks.measure import WARM_UP, Key, Outcome, Summary
from benchmarks.memory import Memory


@dataclass(frozen=True)
class StateSize:
    """How large a state is."""

    leaves: int
    nbytes: int


@dataclass(frozen=True)
class Results:
    """One run."""

    machine: Machine
    sizes: dict[str, StateSize]
    cases: dict[str, Case]
    outcome: Outcome
    summaries: dict[Key, Summary]
    memory: Memory | None
    imports: Imports | None
    bars: list[Bar]

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the figures."""
        notes = list(self.outcome.notes)
        if not self.outcome.cold:
            notes.append(
                "the system did not let us empty the page cache: restores are not cold, which "
                "favours all who read through it"
            )
        return notes


def write_json(results: Results, path: str) -> None:
    """Everything, raw samples included."""
    content = {
        "machine": dataclasses.asdict(results.machine),
        "sizes": {name: dataclasses.asdict(size) for name, size in results.sizes.items()},
        "cases": {
            name: {"label": case.label, "settings": case.settings}
            for name, case in results.cases.items()
        },
        "cold_page_cache": results.outcome.cold,
        "notes": results.notes,
        "bars": [dataclasses.asdict(bar) for bar in results.bars],
        "summaries": [
            {"state": state, "operation": operation, "case": case, **dataclasses.asdict(summary)}
            for (state, operation, case), summary in results.summaries.items()
        ],
        "memory": dataclasses.asdict(results.memory) if results.memory else None,
        "imports": dataclasses.asdict(results.imports) if results.imports else None,
        "warm_up_round": WARM_UP,
        "samples": [dataclasses.asdict(sample) for sample in results.outcome.samples],
    }
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
