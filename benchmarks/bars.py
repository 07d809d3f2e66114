"""What jaxckpt has to reach, each against a figure of the same run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cases import RESTORE, SAVE
from benchmarks.imports import Imports
from benchmarks.limits import LIMIT
from benchmarks.measure import Key, Summary
from benchmarks.memory import DEFAULT_BUDGET, FLAT_EARLY, FLAT_SAVES, MIB, SMALL_BUDGET, Memory
from benchmarks.ours import OURS
from benchmarks.peers import ORBAX, SAFETENSORS, TORCH, TUNED

SMALL, SMALLER = 1_000, 10_000
_IMPORT_SECONDS = 0.1
_FLAT_GROWTH = 1.05
_TIMES_FASTER = (
    ("large", SAVE, (LIMIT,), "the limit of the disk", 0.85),
    ("large", SAVE, (ORBAX,), "orbax", 5.0),
    ("large", SAVE, TUNED, "orbax tuned", 2.0),
    ("large", SAVE, (TORCH,), "torch DCP", 4.0),
    ("large", SAVE, (SAFETENSORS,), "safetensors", 3.0),
    ("large", RESTORE, (LIMIT,), "the limit of the disk", 0.9),
    ("large", RESTORE, (ORBAX,), "orbax", 1.8),
    ("large", RESTORE, TUNED, "orbax tuned", 1.1),
    ("large", RESTORE, (TORCH,), "torch DCP", 4.0),
    ("large", RESTORE, (SAFETENSORS,), "safetensors", 3.0),
    (f"small{SMALL}", SAVE, (ORBAX,), "orbax", 25.0),
    (f"small{SMALL}", RESTORE, (ORBAX,), "orbax", 15.0),
)


@dataclass(frozen=True)
class Bar:
    """One bar, its two sides as they are printed."""

    what: str
    wanted: str
    measured: str
    met: bool


def bars(
    summaries: dict[Key, Summary], memory: Memory | None, imports: Imports | None
) -> list[Bar]:
    """Every bar for which the run has both sides."""
    found = [_speed(summaries, *row) for row in _TIMES_FASTER]
    found += [_growth(summaries, operation) for operation in (SAVE, RESTORE)]
    return [
        *(bar for bar in found if bar is not None),
        *(_of_imports(imports) if imports else []),
        *(_of_memory(memory) if memory else []),
    ]


def fastest(
    summaries: dict[Key, Summary], state: str, operation: str, cases: tuple[str, ...]
) -> str | None:
    """Of these cases, the one with the best median."""
    present = [case for case in cases if (state, operation, case) in summaries]
    return min(present, key=lambda case: summaries[state, operation, case].median, default=None)


def _speed(
    summaries: dict[Key, Summary],
    state: str,
    operation: str,
    cases: tuple[str, ...],
    label: str,
    wanted: float,
) -> Bar | None:
    ours, case = (
        summaries.get((state, operation, OURS)),
        fastest(summaries, state, operation, cases),
    )
    if ours is None or case is None:
        return None
    times = summaries[state, operation, case].median / ours.median
    named = f"{label} ({case})" if len(cases) > 1 else label
    what = f"{state}: speed of {operation} against {named}"
    return Bar(what, f"at least {wanted:g}x", f"{times:.2f}x", times >= wanted)


def _growth(summaries: dict[Key, Summary], operation: str) -> Bar | None:
    few = summaries.get((f"small{SMALL}", operation, OURS))
    many = summaries.get((f"small{SMALLER}", operation, OURS))
    if few is None or many is None:
        return None
    each, each_of_many = few.median / SMALL, many.median / SMALLER
    return Bar(
        f"{operation}: time for each leaf of {SMALLER:,} against {SMALL:,}",
        f"at most {each * 1e6:.1f} us",
        f"{each_of_many * 1e6:.1f} us",
        each_of_many <= each,
    )


def _of_imports(imports: Imports) -> list[Bar]:
    return [
        Bar(
            "import beyond jax and orbax",
            f"at most {_IMPORT_SECONDS:g} s",
            f"{imports.beyond:.3f} s",
            imports.beyond <= _IMPORT_SECONDS,
        ),
        Bar(
            "the layers of its files need neither jax nor orbax",
            "yes",
            "yes" if imports.lean else "no",
            imports.lean,
        ),
    ]


def _of_memory(memory: Memory) -> list[Bar]:
    growth = memory.late_rss / memory.early_rss
    return [
        _peak("peak memory of jaxckpt.save", memory.save_peak, DEFAULT_BUDGET),
        _peak("peak memory of Checkpointer", memory.checkpointer_peak, DEFAULT_BUDGET),
        _peak("peak memory of Checkpointer, small budget", memory.budgeted_peak, SMALL_BUDGET),
        Bar(
            f"resident memory after {FLAT_SAVES} saves against {FLAT_EARLY}",
            f"at most {_FLAT_GROWTH:g}x",
            f"{growth:.3f}x",
            growth <= _FLAT_GROWTH,
        ),
    ]


def _peak(what: str, nbytes: int, budget: int) -> Bar:
    wanted = f"at most {budget / MIB:.0f} MiB"
    return Bar(what, wanted, f"{nbytes / MIB:.0f} MiB", nbytes <= budget)
