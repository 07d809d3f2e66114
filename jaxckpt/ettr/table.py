"""A run's figures as tables: for a terminal, for a notebook, as plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from jaxckpt.ettr.figures import KINDS, Figures, Restart, Spread

_WIDTH = 80
_MOST_RESTARTS = 12
_MOST_CHOICES = 5
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_WORDS = {
    "training": "training, steps that count",
    "lost": "lost work, steps made again",
    "stall": "stall, blocked in save",
    "restore": "restoring",
    "down": "down, between sessions",
    "other": "other: start-up, compilation, other calls",
}


def as_rich(figures: Figures) -> Group:
    """What rich prints: where the time went, the saves, the restarts."""
    parts = [_time(figures), _saves(figures)]
    if figures.restarts:
        parts.append(_restarts(figures))
    notes = [Text(note) for note in _notes(figures)]
    return Group(*parts, *notes)


def as_text(figures: Figures) -> str:
    """Plain text, without colours, of a fixed width."""
    return _console(figures).export_text(clear=False).rstrip("\n")


def as_html(figures: Figures) -> str:
    """A piece of HTML; what comes from the journal is escaped."""
    style = "font-family:monospace;line-height:1.25;white-space:pre"
    return _console(figures).export_html(
        inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
    )


def _console(figures: Figures) -> Console:
    console = Console(
        file=io.StringIO(),
        width=_WIDTH,
        record=True,
        force_terminal=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(as_rich(figures))
    return console


def duration(secs: float) -> str:
    """A time as people say it: ``3.2 ms``, ``41.0 s``, ``5 min 20 s``, ``3 d 4 h``."""
    if not secs:
        return "0 s"
    if secs < 1:
        return f"{secs * 1e3:.1f} ms"
    if secs < 59.95:
        return f"{secs:.1f} s"
    whole = round(secs)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(secs / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(secs / 3600)
    return f"{hours // 24} d {hours % 24} h"


def _brief(secs: float) -> str:
    """As `duration`, narrower: ``5m20s``, ``3d4h``."""
    return duration(secs).replace(" min", "m").replace(" ", "")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _share(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.2f} %"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    unit, size = next(((u, n) for u, n in _UNITS if rate >= n), _UNITS[-1])
    return f"{rate / size:.2f} {unit}/s"


def _time(figures: Figures) -> Table:
    table = _table("Where the time went")
    table.add_column("kind")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    wall = figures.wall_secs
    for kind in KINDS:
        secs = figures.secs_of(kind)
        table.add_row(_WORDS[kind], duration(secs), _share(secs / wall if wall else None))
        if kind == "stall" and figures.waited_secs:
            waited = figures.waited_secs
            table.add_row("  of it waiting for room", duration(waited), _share(waited / wall))
    table.add_section()
    table.add_row("wall time", duration(wall), "")
    table.add_row("effective training time ratio (ETTR)", "", _share(figures.ettr), style="bold")
    return table


def _saves(figures: Figures) -> Table:
    table = _table("Saves and restores")
    for name in ("", "number", "median", "largest", "rate"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    rows = (
        ("stall of a save", figures.stall, figures.stage_bytes_per_sec),
        ("write in the background", figures.write, figures.write_bytes_per_sec),
        ("restore", figures.restore, figures.restore_bytes_per_sec),
        ("between durable steps", figures.durable_interval, None),
    )
    for name, spread, rate in rows:
        table.add_row(name, *_cells(spread), _rate(rate))
    return table


def _cells(spread: Spread) -> Iterator[str]:
    yield str(spread.count)
    yield "" if spread.median is None else duration(spread.median)
    yield "" if spread.largest is None else duration(spread.largest)


def _restarts(figures: Figures) -> Table:
    shown = figures.restarts[-_MOST_RESTARTS:]
    hidden = len(figures.restarts) - len(shown)
    many = f"The newest {len(shown)} of {len(figures.restarts)} restarts"
    table = _table(many if hidden else "Restarts")
    for name in ("at", "after", "from step", "steps lost", "in", "down", "back in"):
        table.add_column(name, justify="right", no_wrap=True)
    for restart in shown:
        table.add_row(
            _brief(restart.at),
            _end_of(restart),
            "" if restart.step is None else str(restart.step),
            str(restart.lost_steps),
            _brief(restart.lost_secs),
            _brief(restart.down_secs),
            "" if restart.back_secs is None else _brief(restart.back_secs),
        )
    return table


def _end_of(restart: Restart) -> str:
    return "preemption" if restart.preempted else "its end" if restart.clean else "a failure"


def _notes(figures: Figures) -> Iterator[str]:
    reached = "no step" if figures.last_step is None else f"step {figures.last_step}"
    yield (
        f"Training is at {reached}; steps that count: {figures.steps}, made again: "
        f"{figures.lost_steps}. Saves begun: {figures.stall.count}, durable: {figures.durable}, "
        f"dropped: {figures.dropped}, failed: {figures.failed}."
    )
    if figures.mtbf_secs is not None:
        yield f"Failures: {figures.failures}, one in {duration(figures.mtbf_secs)} of running."
    for choice in figures.choices[-_MOST_CHOICES:]:
        yield (
            f"Autopilot, at {duration(choice.at)}: a save every "
            f"{duration(choice.interval_secs)}. {printable(choice.why)}"
        )
    if figures.onlookers:
        yield f"Sessions that only looked on and are left out: {figures.onlookers}."
    if figures.skipped_lines:
        yield f"Lines of the journal that are torn or damaged: {figures.skipped_lines}."
    if figures.full:
        yield "The journal reached its limit: what came later is not in these figures."


def printable(text: str) -> str:
    """Text of a file that nobody vouches for, without what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
