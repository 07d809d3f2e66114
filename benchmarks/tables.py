"""The tables of a run, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.console import Console
from rich.text import Text

from benchmarks.bars import Bar
from benchmarks.cases import RESTORE, SAVE
from benchmarks.limits import LIMIT
from benchmarks.machine import Machine
from benchmarks.measure import Summary
from benchmarks.memory import FLAT_EARLY, FLAT_SAVES, MIB, SMALL_BUDGET
from benchmarks.ours import OURS
from benchmarks.results import Results

_METHOD = (
    "method: one run; every case once a round, in an order that is random in each; medians with "
    "the least and the most; a save counts until all of it is durable, a restore begins with a "
    "cold page cache; torch and safetensors end in host memory, orbax and jaxckpt on the devices"
)
_MET, _MISSED = "met", "MISSED"


@dataclass(frozen=True)
class Table:
    """Text in rows; the first column is to the left, the others to the right."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(results: Results) -> list[Table]:
    """Every table for which there are figures."""
    timed = [
        _speeds(results, state, operation)
        if state == "large"
        else _times(results, state, operation)
        for state in results.sizes
        for operation in (SAVE, RESTORE)
    ]
    found = [*timed, _memory(results), _imports(results), bars_table(results.bars)]
    return [table for table in found if table.rows]


def print_tables(results: Results, console: Console) -> None:
    """On the terminal."""
    for table in tables(results):
        console.print(rich_table(table))
    for note in results.notes:
        console.print(f"Note: {note}.", highlight=False)


def write_markdown(results: Results, path: str, picture: str | None) -> None:
    """The same, with what is needed to repeat it."""
    parts = ["# Benchmarks", about(results.machine, _METHOD)]
    if picture:
        parts.append(f"![Speeds of this run]({picture})")
    parts += [markdown(table) for table in tables(results)]
    settings = [f"- {case.label}: `{case.settings}`" for case in results.cases.values()]
    parts += ["## Settings", "\n".join(settings)]
    if results.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in results.notes)]
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def about(machine: Machine, method: str) -> str:
    """Where and how a run happened, as a list."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    hardware = f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb:.0f} GB"
    facts = (
        f"day: {machine.day}, commit {machine.commit}",
        f"devices: {machine.device}",
        f"machine: {hardware}, {machine.kernel}",
        f"disk: {machine.disk}",
        f"load before the run: {machine.load[0]:.1f} of {machine.cores} cores",
        f"versions: Python {machine.python}, {versions}",
        method,
    )
    return "\n".join(f"- {fact}" for fact in facts)


def _speeds(results: Results, state: str, operation: str) -> Table:
    size = results.sizes[state]
    rows = [
        (
            results.cases[case].label,
            f"{size.nbytes / summary.median / 1e9:.2f}",
            f"{size.nbytes / summary.worst / 1e9:.2f} - {size.nbytes / summary.best / 1e9:.2f}",
            f"{summary.worst:.2f}",
            _ratio(results, state, operation, LIMIT, summary, "{:.2f}", ours_over=False),
            _ratio(results, state, operation, OURS, summary, "{:.2f}x", ours_over=True),
        )
        for case, summary in _of(results, state, operation)
    ]
    title = f"{state}: {operation}, {size.nbytes / 1e9:.2f} GB in {size.leaves} leaves"
    header = ("", "GB/s", "min - max", "worst s", "of limit", "jaxckpt faster")
    return Table(title, header, rows)


def _times(results: Results, state: str, operation: str) -> Table:
    size = results.sizes[state]
    rows = [
        (
            results.cases[case].label,
            f"{summary.median * 1e3:.1f}",
            f"{summary.best * 1e3:.1f} - {summary.worst * 1e3:.1f}",
            f"{summary.median / size.leaves * 1e6:.1f}",
            _ratio(results, state, operation, OURS, summary, "{:.1f}x", ours_over=True),
        )
        for case, summary in _of(results, state, operation)
    ]
    title = f"{state}: {operation}, {size.leaves:,} leaves of 1 KiB"
    return Table(title, ("", "ms", "min - max", "us a leaf", "jaxckpt faster"), rows)


def _of(results: Results, state: str, operation: str) -> list[tuple[str, Summary]]:
    """The cases of a table, in the order in which they are named."""
    return [
        (case, results.summaries[state, operation, case])
        for case in results.cases
        if (state, operation, case) in results.summaries
    ]


def _ratio(
    results: Results,
    state: str,
    operation: str,
    other: str,
    summary: Summary,
    form: str,
    *,
    ours_over: bool,
) -> str:
    """A median against that of another case; empty where that was not measured."""
    found = results.summaries.get((state, operation, other))
    if found is None:
        return ""
    times = summary.median / found.median
    return form.format(times if ours_over else 1 / times)


def _memory(results: Results) -> Table:
    memory, rows = results.memory, list[tuple[str, ...]]()
    if memory is not None:
        figures = {
            "state": memory.state_bytes,
            "jaxckpt.save, peak beyond the state": memory.save_peak,
            "Checkpointer, peak beyond the state": memory.checkpointer_peak,
            f"the same with a budget of {SMALL_BUDGET // MIB} MiB": memory.budgeted_peak,
            f"process after {FLAT_EARLY} saves": memory.early_rss,
            f"process after {FLAT_SAVES} saves": memory.late_rss,
        }
        rows = [(what, f"{nbytes / MIB:.0f}") for what, nbytes in figures.items()]
    return Table("memory", ("", "MiB"), rows)


def _imports(results: Results) -> Table:
    imports, rows = results.imports, list[tuple[str, ...]]()
    if imports is not None:
        rows = [
            ("jax and orbax", f"{imports.jax_and_orbax:.3f}"),
            ("jaxckpt beyond them", f"{imports.beyond:.3f}"),
        ]
    return Table("import", ("", "s"), rows)


def bars_table(bars: Sequence[Bar]) -> Table:
    """Wanted and measured."""
    rows = [(bar.what, bar.wanted, bar.measured, _MET if bar.met else _MISSED) for bar in bars]
    return Table("bars", ("", "wanted", "measured", ""), rows)


def rich_table(table: Table) -> rich.table.Table:
    """For the terminal."""
    drawn = rich.table.Table(title=table.title, title_justify="left")
    for number, name in enumerate(table.header):
        drawn.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    styles = {_MET: "green", _MISSED: "bold red"}
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    return drawn


def markdown(table: Table) -> str:
    """For a file."""
    columns = len(table.header)
    lines = [f"## {table.title[0].upper()}{table.title[1:]}", ""]
    lines.append("| " + " | ".join(table.header) + " |")
    lines.append("|:---|" + "---:|" * (columns - 1))
    lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join(lines)
