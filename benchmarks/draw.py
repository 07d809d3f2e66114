"""The picture of a run: ours beside the peers and the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.bars import SMALL, SMALLER
from benchmarks.cases import RESTORE, SAVE
from benchmarks.limits import LIMIT, LIMITS
from benchmarks.ours import OURS, OURS_PLAIN
from benchmarks.results import Results

OURS_GREEN, PLAIN_GREEN, LIMIT_GREY, PEER_GREY, INK = (
    "#0b6e4f",
    "#7fb8a4",
    "#c9ccd1",
    "#8a94a6",
    "#24292f",
)
_COLOURS = {OURS: OURS_GREEN, OURS_PLAIN: PLAIN_GREEN, **dict.fromkeys(LIMITS, LIMIT_GREY)}


def write_panels(panels: Sequence[Callable[[Axes], None]], path: str, height: float) -> None:
    """Draws panels side by side into a file; ``height`` in inches."""
    mpl.use("Agg")
    with plt.rc_context({"font.size": 9, "text.color": INK, "axes.edgecolor": PEER_GREY}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(5.2 * len(panels), height), squeeze=False
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            panel(axis)
        figure.tight_layout()
        figure.savefig(path, dpi=150)
        plt.close(figure)


def draw(results: Results, path: str) -> bool:
    """Writes the picture; False where nothing was timed."""
    panels = _panels(results)
    if not panels:
        return False
    write_panels(panels, path, height=4.2)
    return True


def _panels(results: Results) -> list[Callable[[Axes], None]]:
    found: list[Callable[[Axes], None]] = []
    for operation in (SAVE, RESTORE):
        cases = [case for case in results.cases if ("large", operation, case) in results.summaries]
        if cases:
            found.append(
                lambda axis, operation=operation, cases=cases: _speeds(
                    axis, results, operation, cases
                )
            )
    small = _small_rows(results)
    if small:
        found.append(lambda axis: _small(axis, small))
    return found


def _speeds(axis: Axes, results: Results, operation: str, cases: list[str]) -> None:
    """Medians as bars, the spread as whiskers, the limit as a line through all."""
    nbytes = results.sizes["large"].nbytes
    found = [results.summaries["large", operation, case] for case in cases]
    middle = [nbytes / one.median / 1e9 for one in found]
    lower = [m - nbytes / one.worst / 1e9 for m, one in zip(middle, found, strict=True)]
    upper = [nbytes / one.best / 1e9 - m for m, one in zip(middle, found, strict=True)]
    colours = [_COLOURS.get(case, PEER_GREY) for case in cases]
    labels = [results.cases[case].label for case in cases]
    places = range(len(cases))
    axis.barh(places, middle, color=colours, height=0.7)
    axis.errorbar(
        middle, places, xerr=[lower, upper], fmt="none", ecolor=INK, elinewidth=0.8, capsize=2
    )
    for place, value, more in zip(places, middle, upper, strict=True):
        axis.annotate(
            f"{value:.2f}", (value + more, place), (4, 0), textcoords="offset points", va="center"
        )
    if LIMIT in cases:
        axis.axvline(middle[cases.index(LIMIT)], color=INK, linewidth=0.8, linestyle=":")
    axis.set_yticks(places, labels)
    axis.set_xlim(0, 1.15 * max(m + more for m, more in zip(middle, upper, strict=True)))
    finish(axis, f"{operation} of {nbytes / 1e9:.2f} GB, GB/s (more is better)")


def _small_rows(results: Results) -> list[tuple[str, float, str]]:
    """Label, microseconds a leaf and colour."""
    rows: list[tuple[str, float, str]] = []
    for operation in (SAVE, RESTORE):
        for case in results.cases:
            for leaves in (SMALL, SMALLER):
                summary = results.summaries.get((f"small{leaves}", operation, case))
                if summary is not None:
                    label = f"{operation}, {results.cases[case].label}, {leaves:,} leaves"
                    each = summary.median / leaves * 1e6
                    rows.append((label, each, _COLOURS.get(case, PEER_GREY)))
    return rows


def _small(axis: Axes, rows: list[tuple[str, float, str]]) -> None:
    labels, values, colours = zip(*rows, strict=True)
    places = range(len(rows))
    axis.barh(places, values, color=colours, height=0.7)
    for place, value in zip(places, values, strict=True):
        axis.annotate(
            f"{value:,.0f}", (value, place), (4, 0), textcoords="offset points", va="center"
        )
    axis.set_xscale("log")
    axis.set_xlim(min(values) / 2, 4 * max(values))
    axis.set_yticks(places, labels)
    finish(axis, "us for a leaf of 1 KiB, log (less is better)")


def finish(axis: Axes, title: str) -> None:
    """What all panels with bars have in common."""
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=10)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
