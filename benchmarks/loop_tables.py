"""The tables of the benchmark of a loop, for the terminal and for Markdown."""

from __future__ import annotations

from rich.console import Console

from benchmarks.loop_memory import MIB
from benchmarks.loop_results import CALL, ENDED, PAID, STAGED, LoopResults, Spread, bars
from benchmarks.loop_savers import LABELS, LAZY, NONE
from benchmarks.loop_stall import HABITS
from benchmarks.loop_training import CASES
from benchmarks.tables import Table, about, bars_table, markdown, rich_table

_METHOD = (
    "method: one run, random data; every case once a round, in an order that is random in each; "
    "medians with the least and the most"
)
_STALL = """\
A save begins when the one before has ended and the disk is quiet, with all memory used before (one
save of each case is not counted). `call` is the stall. On the CPU backend a library may return
with views of the arrays in hand; then a step that donates finds its memory in use and must take
new. So after each save comes a step that reads and writes every element, and `paid` is the call and
this step, less what the step takes without a save in the same round. Two habits of a loop are
measured, each in rounds of its own with savers of its own: in `donated` the step donates the state
and works in place, in `kept` it makes new arrays and the old ones are dropped. A lazy save and
torch, which do the same in both, are in the first alone. Torch, and orbax with many leaves, have
three rounds at most. `staged` is when the state may be changed, `ended` when the library says that
the save has ended; only jaxckpt makes it durable by then."""


def print_tables(results: LoopResults, console: Console) -> None:
    """On the terminal."""
    for table in tables(results):
        console.print(rich_table(table))
    for note in results.notes:
        console.print(f"Note: {note}.", highlight=False)


def write_markdown(results: LoopResults, path: str) -> None:
    """The same, with what is needed to repeat it."""
    parts = ["# Saves in a training loop", about(results.machine, _METHOD)]
    parts.append(markdown(bars_table(bars(results))))
    stalls = _stalls(results)
    if stalls:
        parts += ["## The stall of one save", _STALL]
        parts += [markdown(table).replace("## ", "### ", 1) for table in stalls]
    if results.training:
        parts.append(markdown(_loop(results)))
        parts.insert(-1, _about_loop(results))
    parts += [markdown(table) for table in _memory(results)]
    parts += ["## Settings", "\n".join(f"- {n}: `{text}`" for n, text in results.settings.items())]
    if results.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in results.notes)]
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def tables(results: LoopResults) -> list[Table]:
    """Every table for which there are figures."""
    loop = [_loop(results)] if results.training else []
    return [*_stalls(results), *loop, *_memory(results), bars_table(bars(results))]


def _stalls(results: LoopResults) -> list[Table]:
    return [_stall(results, state) for state in results.states()]


def _stall(results: LoopResults, state: str) -> Table:
    nbytes = next(one.nbytes for one in results.stalls if one.state == state)
    rows: list[tuple[str, ...]] = []
    for case, habit in [(c, h) for h in HABITS for c in results.cases(state, h) if c != NONE]:
        call = results.stall(state, habit, case, CALL)
        paid = results.stall(state, habit, case, PAID)
        assert call is not None
        assert paid is not None
        rows.append(
            (
                LABELS[case],
                habit,
                _ms(call),
                _range_ms(call),
                _ms(paid),
                _range_ms(paid),
                _ms(results.stall(state, habit, case, STAGED)) if case == LAZY else "",
                _secs(results.stall(state, habit, case, ENDED)),
            )
        )
    header = (
        "", "state", "call ms", "min - max", "paid ms", "min - max", "staged ms", "ended s",
    )  # fmt: skip
    return Table(f"{state}: {nbytes / 1e6:,.0f} MB", header, rows)


def _about_loop(results: LoopResults) -> str:
    training = results.training
    assert training is not None
    rate = f"{training.rate / 1e6:.0f} MB/s" if training.rate else "no set rate"
    return (
        f"## The loop\n\nA loop that saves at every step, on storage that takes longer for a state "
        f"than a step: {training.nbytes / 1e6:.0f} MB of state, a step of "
        f"{training.step_secs:.2f} s, and a file system with {rate} for all who write (a loop "
        f"device with limited writes and little room for dirty pages). The step computes "
        f"gradients, waits until the state may be donated, and donates it to the update. It "
        f"computes on {training.cores[0]} of {training.cores[1]} cores, as if the rest were the "
        f"host of an accelerator; what copies and writes may use all of them, and shares the "
        f"memory's bandwidth. A few steps with saves go before the timed ones, so that snapshots "
        f"wait from the start. `jaxckpt` may drop a snapshot that waits for a newer one; what is "
        f"counted as durable has ended, but the others do not sync it."
    )


def _loop(results: LoopResults) -> Table:
    rows: list[tuple[str, ...]] = []
    for case in CASES:
        rounds, share = results.loops(case), results.throughput(case)
        if not rounds or share is None:
            continue
        blocked = Spread.of(one.blocked / one.steps for one in rounds)
        counts = [one.counts for one in rounds if one.counts]
        waited = [one.waited_secs for one in counts if one.waited_secs is not None]
        rows.append(
            (
                LABELS[case],
                f"{Spread.of(one.secs / one.steps for one in rounds).median:.3f}",
                f"{share.median:.3f}",
                f"{share.least:.3f} - {share.most:.3f}",
                _ms(blocked) if counts else "",
                f"{sum(waited):.3f}" if waited else "",
                f"{sum(one.saves for one in rounds)}" if counts else "",
                f"{sum(one.durable for one in counts)}" if counts else "",
                f"{sum(one.dropped for one in counts)}" if counts else "",
            )
        )
    header = (
        "", "s a step", "throughput", "min - max", "in calls, ms a step", "waited s", "calls",
        "durable", "dropped",
    )  # fmt: skip
    return Table("a loop that saves at every step", header, rows)


def _memory(results: LoopResults) -> list[Table]:
    memory = results.memory
    if memory is None:
        return []
    figures = {
        "state": memory.nbytes,
        "budget": memory.budget,
        "peak beyond the loop without saves": memory.peak,
        f"process after {memory.saves // 10:,} saves": memory.early,
        f"process after {memory.saves:,} saves": memory.late,
    }
    rows = [(what, f"{nbytes / MIB:.0f}") for what, nbytes in figures.items()]
    title = f"memory of {memory.saves:,} saves, {memory.dropped:,} of them dropped for newer ones"
    return [Table(title, ("", "MiB"), rows)]


def _ms(spread: Spread | None) -> str:
    return f"{spread.median * 1e3:.1f}" if spread else ""


def _range_ms(spread: Spread) -> str:
    return f"{spread.least * 1e3:.1f} - {spread.most * 1e3:.1f}"


def _secs(spread: Spread | None) -> str:
    return f"{spread.median:.2f}" if spread else ""
