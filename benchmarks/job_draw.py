"""The picture of a run of jobs: what is read, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes

from benchmarks.cases import RESTORE
from benchmarks.draw import (
    INK,
    LIMIT_GREY,
    OURS_GREEN,
    PEER_GREY,
    PLAIN_GREEN,
    finish,
    write_panels,
)
from benchmarks.job_cases import (
    ALLGATHER,
    AUTO,
    BROADCAST,
    CASES,
    DIRECT,
    DISK,
    ORBAX,
    ORBAX_BROADCAST,
    SLOW_REPLICATED,
    UNCHECKED,
)
from benchmarks.job_results import JobResults

_COUNTED = (ALLGATHER, BROADCAST, DIRECT, ORBAX, ORBAX_BROADCAST)
_COLOURS = {
    AUTO: OURS_GREEN,
    **dict.fromkeys((ALLGATHER, BROADCAST, UNCHECKED), PLAIN_GREEN),
    DIRECT: LIMIT_GREY,
    ORBAX: PEER_GREY,
    ORBAX_BROADCAST: PEER_GREY,
}
_MARKS = {ALLGATHER: "o", BROADCAST: "s", DIRECT: "x", ORBAX: "+", ORBAX_BROADCAST: "D"}
_LINES = {ALLGATHER: OURS_GREEN, BROADCAST: PLAIN_GREEN, DIRECT: INK, ORBAX: PEER_GREY}


def draw(results: JobResults, path: str) -> bool:
    """Writes the picture; False where nothing was measured."""
    panels: list[Callable[[Axes], None]] = []
    if any(count.operation == RESTORE and count.processes > 1 for count in results.counts):
        panels.append(lambda axis: _bytes(axis, results))
    panels += [
        lambda axis, state=state: _times(axis, results, state)
        for state in (SLOW_REPLICATED, DISK)
        if any(key[:2] == (state, RESTORE) for key in results.summaries)
    ]
    if not panels:
        return False
    write_panels(panels, path, height=4.0)
    return True


def _bytes(axis: Axes, results: JobResults) -> None:
    """How often the state is read, by the number of replicas."""
    for case in _COUNTED:
        found = sorted(
            (count.processes, count.ratio)
            for count in results.counts
            if count.operation == RESTORE and count.case == case
        )
        if found:
            jobs, ratios = zip(*found, strict=True)
            axis.plot(
                jobs,
                ratios,
                marker=_MARKS[case],
                markersize=9 if case in (BROADCAST, ORBAX) else 5,
                markerfacecolor="none" if case == BROADCAST else None,
                linestyle=":" if case in (ORBAX, ORBAX_BROADCAST) else "-",
                color=_LINES.get(case, PEER_GREY),
                label=CASES[case].label,
            )
    axis.set_xlabel("replicas, one for each process")
    axis.set_xticks(sorted({count.processes for count in results.counts}))
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    axis.set_title("bytes read over bytes of the state", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _times(axis: Axes, results: JobResults, state: str) -> None:
    """Medians as bars, the spread as whiskers."""
    cases = [case for case in CASES if (state, RESTORE, case) in results.summaries]
    found = [results.summaries[state, RESTORE, case] for case in cases]
    middle = [one.median for one in found]
    spread = [
        [one.median - one.best for one in found],
        [one.worst - one.median for one in found],
    ]
    places = range(len(cases))
    axis.barh(places, middle, color=[_COLOURS[case] for case in cases], height=0.7)
    axis.errorbar(middle, places, xerr=spread, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
    for place, one in zip(places, found, strict=True):
        axis.annotate(
            f"{one.median:.2f}", (one.worst, place), (4, 0), textcoords="offset points", va="center"
        )
    axis.set_yticks(places, [CASES[case].label for case in cases])
    axis.set_xlim(0, 1.15 * max(one.worst for one in found))
    axis.set_xlabel(f"seconds for {results.sizes[state] / 1e9:.2f} GB (less is better)")
    where = "the local disk"
    if state == SLOW_REPLICATED:
        where = f"{results.rate / 1e6:.0f} MB/s for the whole job"
    finish(axis, f"restore to 4 replicas from {where}")
