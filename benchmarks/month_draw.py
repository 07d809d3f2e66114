"""The picture of the simulated months: ETTR over the interval between saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.draw import INK, LIMIT_GREY, OURS_GREEN, PEER_GREY, PLAIN_GREEN

_COLUMNS = 3


def draw(
    rows: Sequence[Any], path: str, others: tuple[str, str, str], ten: str, sixty: str
) -> None:
    """One panel for each scenario.

    Args:
        rows: as `benchmarks.month.Row`.
        others: the names of the two autopilots and of the policy without an interval.
        ten, sixty: the names of the two usual intervals.
    """
    mpl.use("Agg")
    found = list(dict.fromkeys(row.scenario for row in rows))
    lines = -(-len(found) // _COLUMNS)
    style = {
        "font.size": 8,
        "text.color": INK,
        "axes.edgecolor": PEER_GREY,
        "svg.hashsalt": "month",
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            lines, _COLUMNS, figsize=(3.9 * _COLUMNS, 2.9 * lines), squeeze=False
        )
        for axis in axes.flat[len(found) :]:
            axis.set_visible(False)
        for axis, name in zip(axes.flat, found, strict=False):
            _panel(axis, [row for row in rows if row.scenario == name], others, ten, sixty)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
        figure.tight_layout(rect=(0, 0.09, 1, 1))
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _panel(axis: Axes, rows: list[Any], others: tuple[str, str, str], ten: str, sixty: str) -> None:
    """The sweep as a line with its spread, the sum as dots, the policies as points."""
    given, learned, often = others
    named = {row.policy: row for row in rows}
    swept = sorted((row for row in rows if row.policy not in others), key=lambda row: row.interval)
    intervals = [row.interval / 60 for row in swept]
    axis.fill_between(
        intervals,
        [row.least for row in swept],
        [row.most for row in swept],
        color=LIMIT_GREY,
        alpha=0.5,
        linewidth=0,
        label="fixed interval, least to most",
    )
    axis.plot(intervals, [row.median for row in swept], color=INK, label="fixed interval, median")
    axis.plot(intervals, [row.expected for row in swept], ":", color=OURS_GREEN, label="expected")
    axis.axhline(named[often].median, color=PEER_GREY, linestyle="--", label=often)
    for name, mark in ((ten, "s"), (sixty, "D")):
        row = named[name]
        axis.plot(row.interval / 60, row.median, mark, color=PEER_GREY, label=name)
    for name, colour in ((learned, PLAIN_GREEN), (given, OURS_GREEN)):
        row = named[name]
        axis.plot(row.interval / 60, row.median, "o", color=colour, label=name)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10, 20, 60, 120])
    axis.set_xticklabels(["0.5", "1", "2", "5", "10", "20", "60", "120"])
    axis.minorticks_off()
    axis.set_xlim(intervals[0] / 1.15, intervals[-1] * 1.15)
    axis.set_xlabel("minutes of training between saves, log")
    axis.set_title(f"{rows[0].scenario}: ETTR", loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
