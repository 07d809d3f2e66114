"""Measures jaxckpt beside its peers and the limit of the disk: ``python -m benchmarks.compare``."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass

from rich.console import Console

from benchmarks import states
from benchmarks.bars import SMALL, SMALLER, bars
from benchmarks.cases import RESTORE, SAVE, Case
from benchmarks.draw import draw
from benchmarks.imports import measure_imports
from benchmarks.limits import LIMITS, limits
from benchmarks.machine import describe
from benchmarks.measure import Outcome, Rounds, Task, summarize
from benchmarks.memory import measure_memory
from benchmarks.ours import OURS, OURS_PLAIN, ours, ours_without_checksum
from benchmarks.peers import PEERS, orbax_default, peers
from benchmarks.results import Results, StateSize, write_json
from benchmarks.states import State
from benchmarks.tables import print_tables, write_markdown

_PARTS = ("large", "small", "memory", "import")
_OPERATIONS = (SAVE, RESTORE)
_CASES = (*LIMITS, OURS, OURS_PLAIN, *PEERS)
_MUST_WORK = frozenset((*LIMITS, OURS, OURS_PLAIN))
_SLOW_ROUNDS = 1
"""Orbax takes so long for 10,000 leaves that more would be most of the run."""
_SPARE_STATES = 3
"""Room for the output being written, the memory figures and what the disk has not discarded."""


@dataclass(frozen=True)
class Selection:
    """What to run. Names of one kind choose among that kind; a kind without names is whole."""

    parts: frozenset[str]
    operations: tuple[str, ...]
    cases: frozenset[str]


def main() -> None:
    """Runs everything asked for and writes the three files."""
    args = _arguments()
    chosen = _select(args.only)
    console = Console()
    states.start_devices()
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as folder:
        results = _measure(args.bytes, args.repeats, chosen, folder, console)
    print_tables(results, console)
    write_json(results, os.path.join(args.out, "compare.json"))
    drawn = draw(results, os.path.join(args.out, "compare.png"))
    picture = "compare.png" if drawn else None
    write_markdown(results, os.path.join(args.out, "compare.md"), picture)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--bytes", type=float, default=1e9, help="of the large state")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--out", default="docs/benchmarks", help="directory of the results")
    parser.add_argument("--dir", default=".", help="directory on the disk to measure")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        choices=(*_PARTS, *_OPERATIONS, *_CASES),
        help=f"some of: {', '.join((*_PARTS, *_OPERATIONS, *_CASES))}",
    )
    args = parser.parse_args()
    if args.repeats < 1 or args.bytes < 1:
        parser.error("--repeats and --bytes must be at least 1")
    return args


def _select(names: list[str]) -> Selection:
    parts = [name for name in _PARTS if name in names] or _PARTS
    operations = tuple(name for name in _OPERATIONS if name in names) or _OPERATIONS
    cases = [name for name in _CASES if name in names] or _CASES
    return Selection(frozenset(parts), operations, frozenset(cases))


def _measure(
    nbytes: float, repeats: int, chosen: Selection, folder: str, console: Console
) -> Results:
    machine = describe(folder)
    imports = measure_imports(repeats) if "import" in chosen.parts else None
    tasks, notes = _tasks(nbytes, repeats, chosen)
    _refuse_if_full(folder, tasks)
    sizes = {t.state.name: StateSize(len(t.state.host), t.state.nbytes) for t in tasks}
    cases = {task.case.name: task.case for task in tasks}
    outcome = Rounds(folder, _MUST_WORK, console.print).run(tasks)
    outcome = Outcome(outcome.samples, outcome.cold, notes + outcome.notes)
    summaries = summarize(outcome.samples)
    memory = measure_memory(nbytes, folder) if "memory" in chosen.parts else None
    found = bars(summaries, memory, imports)
    return Results(machine, sizes, cases, outcome, summaries, memory, imports, found)


def _tasks(nbytes: float, repeats: int, chosen: Selection) -> tuple[list[Task], list[str]]:
    """All tasks of the selection, and what is missing for others."""
    tasks: list[Task] = []
    notes: list[str] = []
    if "large" in chosen.parts:
        state = states.large(nbytes)
        others, notes = peers(state)
        cases = [ours(state), ours_without_checksum(state), *limits(state.nbytes), *others]
        tasks += [_task(state, case, repeats, chosen) for case in cases]
    if "small" in chosen.parts:
        few, many = states.small(SMALL), states.small(SMALLER)
        tasks += [_task(few, case, repeats, chosen) for case in (ours(few), orbax_default(few))]
        tasks.append(_task(many, ours(many), repeats, chosen))
        tasks.append(_task(many, orbax_default(many), _SLOW_ROUNDS, chosen))
    return [t for t in tasks if t.operations and t.case.name in chosen.cases], notes


def _task(state: State, case: Case, rounds: int, chosen: Selection) -> Task:
    operations = tuple(name for name in case.operations if name in chosen.operations)
    return Task(state, case, rounds, operations)


def _refuse_if_full(folder: str, tasks: list[Task]) -> None:
    """Fails before an hour of work where the disk can not hold what restores read."""
    largest = max((task.state.nbytes for task in tasks), default=0)
    needed = sum(task.state.nbytes for task in tasks) + _SPARE_STATES * largest
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"The disk has {free / 1e9:.1f} GB free and the run needs {needed / 1e9:.1f} GB: "
            "give another --dir or fewer --bytes."
        )


if __name__ == "__main__":
    main()
