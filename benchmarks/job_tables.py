"""The tables of a run of jobs, for the terminal and for Markdown."""

from __future__ import annotations

from rich.console import Console

from benchmarks.cases import RESTORE, SAVE
from benchmarks.job_cases import (
    AUTO,
    CASES,
    DISK,
    SLOW_REPLICATED,
    SLOW_SHARDED,
)
from benchmarks.job_results import JobResults, bars
from benchmarks.job_state import LEAVES
from benchmarks.tables import Table, about, bars_table, markdown, rich_table

METHOD = (
    "method: real jobs of jax.distributed with gloo over loopback; a time goes from a barrier to "
    "the end of the last process, in one set of processes for all cases; every case once a round, "
    "in an order that is random in each; medians with the least and the most; a restore begins "
    "with a cold page cache, fresh memory and nothing compiled; a save counts until all of it is "
    "durable"
)
_COUNTING = (
    "jaxckpt's bytes are counted at its Store, orbax's as `rchar` and `wchar` of `/proc/self/io` "
    "in each process: what the calls moved, whether or not the page cache had it. Processes on "
    "machines of their own share no page cache."
)


def tables(results: JobResults) -> list[Table]:
    """Every table for which there are figures."""
    found = [
        _counts(results, RESTORE),
        _counts(results, SAVE),
        _times(results, SLOW_REPLICATED, RESTORE),
        _times(results, SLOW_SHARDED, RESTORE),
        _times(results, DISK, RESTORE),
        _times(results, DISK, SAVE),
        bars_table(bars(results)),
    ]
    return [table for table in found if table.rows]


def print_tables(results: JobResults, console: Console) -> None:
    """On the terminal."""
    for table in tables(results):
        console.print(rich_table(table))
    for note in results.notes:
        console.print(f"Note: {note}.", highlight=False)


def write_markdown(results: JobResults, path: str, picture: str | None) -> None:
    """The same, with what is needed to repeat it."""
    parts = ["# Jobs of several processes", about(results.machine, METHOD) + _sizes(results)]
    if picture:
        parts.append(f"![Bytes and times of this run]({picture})")
    for table in tables(results):
        parts.append(markdown(table))
        if table.title.startswith("bytes read"):
            parts.append(_COUNTING)
    used = {case for _, _, case in results.summaries} | {count.case for count in results.counts}
    settings = [f"- {CASES[c].label}: `{CASES[c].settings}`" for c in CASES if c in used]
    parts += ["## Settings", "\n".join(settings)]
    if results.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in results.notes)]
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def _sizes(results: JobResults) -> str:
    facts = [f"{nbytes / 1e9:.3f} GB for {state}" for state, nbytes in results.sizes.items()]
    if results.counted_bytes:
        facts.insert(0, f"{results.counted_bytes / 1e9:.3f} GB where bytes are counted")
    lines = [f"sizes: random float32 in {LEAVES} leaves; " + "; ".join(facts)]
    if any(state in results.sizes for state in (SLOW_REPLICATED, SLOW_SHARDED)):
        rate = f"{results.rate / 1e6:.0f} MB/s for all processes together"
        lines.append(f"slow: a Store that reads at {rate}")
    lines.append(f"the whole run took {results.seconds / 60:.1f} minutes")
    return "".join(f"\n- {line}" for line in lines)


def _counts(results: JobResults, operation: str) -> Table:
    found = {(c.processes, c.case): c for c in results.counts if c.operation == operation}
    jobs = sorted({processes for processes, _ in found})
    rows: list[tuple[str, ...]] = []
    for case, named in CASES.items():
        own = [found.get((processes, case)) for processes in jobs]
        if any(own):
            rows.append((named.label, *(f"{c.ratio:.3f}" if c else "" for c in own)))
            if operation == SAVE:
                levels = (f"{c.level:.3f}" if c else "" for c in own)
                rows.append((f"{named.label}, most of a process over the mean", *levels))
    verb = "read" if operation == RESTORE else "written"
    title = f"bytes {verb} over bytes of the state, replicated over R processes"
    return Table(title, ("", *(f"R = {processes}" for processes in jobs)), rows)


def _times(results: JobResults, state: str, operation: str) -> Table:
    ours = results.of(state, AUTO, operation)
    rows: list[tuple[str, ...]] = []
    for case, named in CASES.items():
        summary = results.summaries.get((state, operation, case))
        if summary is None:
            continue
        nbytes = results.sizes[state]
        rows.append(
            (
                named.label,
                f"{summary.median:.2f}",
                f"{summary.best:.2f} - {summary.worst:.2f}",
                f"{nbytes / summary.median / 1e9:.3f}",
                f"{summary.median / ours:.2f}x" if ours else "",
            )
        )
    nbytes = results.sizes.get(state, 0)
    title = f"{operation}: {state}, 4 processes, {nbytes / 1e9:.2f} GB"
    header = ("", "s", "min - max", "GB/s of the state", "jaxckpt faster")
    return Table(title, header, rows)
