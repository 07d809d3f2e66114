"""A run's time as a picture: a row for each kind, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.ettr.columns import axis_unit, shares
from jaxckpt.ettr.figures import Figures, Restart
from jaxckpt.ettr.table import duration

_COLUMNS = 900
_LOWEST = 0.14
_MOST_MARKS = 60
# Label, kind, colour: of Okabe and Ito's palette, which the colour-blind tell apart too.
_ROWS = (
    ("training", "training", "#009E73"),
    ("stall", "stall", "#D55E00"),
    ("background write", "write", "#56B4E9"),
    ("lost work", "lost", "#CC79A7"),
    ("restore", "restore", "#0072B2"),
    ("down", "down", "#777777"),
)

_BESIDE: dict[str, Any] = {"va": "center", "fontsize": 9.5}


def save_picture(figures: Figures, path: str | Path) -> None:
    """Draws into a PNG or SVG file, by its suffix; one that is there is replaced.

    Raises:
        InvalidOptionsError: another suffix, or matplotlib is missing.
        OSError: the file can not be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg"):
        raise InvalidOptionsError("picture", str(path), "a name that ends in .png or .svg")
    Path(path).write_bytes(draw(figures, suffix[1:]))


def draw(figures: Figures, kind: str) -> bytes:
    """The picture's bytes; ``kind`` is ``png`` or ``svg``.

    Raises:
        InvalidOptionsError: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        wanted = "the package matplotlib to be installed: pip install 'jaxckpt[report]'"
        raise InvalidOptionsError("picture", kind, wanted) from error
    # The same figures give the same bytes; text stays text in an SVG.
    with mpl.rc_context({"svg.hashsalt": "jaxckpt", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 4.4), dpi=120)
        _draw_rows(figure.add_axes((0.14, 0.2, 0.66, 0.62)), figures)
        figure.text(0.14, 0.93, _title(figures), fontsize=13, weight="bold")
        figure.text(0.14, 0.865, _subtitle(figures), fontsize=9, color="#444444")
        note = (
            "A bar is as high as its share of the time below it, with a least height that can be "
            "seen. Where there is none: start-up, compilation, evaluation."
        )
        figure.text(0.14, 0.03, note, fontsize=7.5, color="#666666")
        buffer = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def _draw_rows(axes: Any, figures: Figures) -> None:
    wall = figures.wall_secs or 1.0
    unit, secs = axis_unit(wall)
    edges = [wall / secs * i / _COLUMNS for i in range(_COLUMNS + 1)]
    count = len(_ROWS)
    for i, (label, kind, colour) in enumerate(_ROWS):
        base = 1.3 * (count - 1 - i)
        axes.axhline(base, color="#dddddd", linewidth=0.6, zorder=0)
        axes.text(-0.012, base + 0.5, label, **_BESIDE, ha="right", transform=_row(axes))
        axes.text(1.012, base + 0.5, _total(figures, kind), **_BESIDE, transform=_row(axes))
        found = shares((s for s in figures.timeline if s.kind == kind), wall, _COLUMNS)
        tops = [base + max(share, _LOWEST) if share > 0 else base for share in found]
        axes.stairs(tops, edges, baseline=base, fill=True, color=colour, linewidth=0, zorder=2)
    _mark_restarts(axes, figures.restarts, secs)
    axes.set_xlim(0, wall / secs)
    axes.set_ylim(-0.15, 1.3 * count)
    axes.set_xlabel(f"{unit} since the run's start (wall clock)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.set_yticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _row(axes: Any) -> Any:
    """Across: shares of the width; upwards: the rows' own numbers."""
    return axes.get_yaxis_transform()


def _mark_restarts(axes: Any, restarts: Sequence[Restart], secs: float) -> None:
    many = len(restarts) > _MOST_MARKS
    for restart in restarts:
        at = (restart.at + restart.down_secs) / secs
        width, strength = (0.3, 0.35) if many else (0.9, 0.8)
        axes.axvline(at, color="#222222", linewidth=width, alpha=strength, linestyle="--", zorder=1)


def _total(figures: Figures, kind: str) -> str:
    if kind == "write":
        return duration(figures.write.total)
    secs = figures.secs_of(kind)
    if not secs:
        return "none"
    share = f" · {100 * secs / figures.wall_secs:.2f} %" if figures.wall_secs else ""
    return f"{duration(secs)}{share}"


def _title(figures: Figures) -> str:
    if figures.ettr is None:
        return "A run without a session"
    return f"{100 * figures.ettr:.2f} % of the time was training that counts (ETTR)"


def _subtitle(figures: Figures) -> str:
    restarts = len(figures.restarts)
    named = "no restarts" if not restarts else f"{restarts} restart{'s' if restarts > 1 else ''}"
    dashed = " (dashed)" if restarts else ""
    return (
        f"{duration(figures.wall_secs)} in all; steps that count: {figures.steps:,}, made again: "
        f"{figures.lost_steps:,}; saves: {figures.stall.count:,}; {named}{dashed}"
    )
