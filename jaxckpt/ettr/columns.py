"""A run's time cut into columns, for a picture that is as true of a minute as of a month."""

from __future__ import annotations

from collections.abc import Iterable

from jaxckpt.ettr.figures import Segment


def shares(segments: Iterable[Segment], wall_secs: float, columns: int) -> list[float]:
    """For each column the share of its time that the segments cover, 0 to 1.

    Args:
        segments: of one kind, in any order.
        wall_secs: the run's time, more than 0.
        columns: how many of equal time it is cut into.
    """
    found = [0.0] * columns
    width = wall_secs / columns
    for segment in segments:
        start, end = segment.start / width, min(segment.end / width, float(columns))
        column = min(max(int(start), 0), columns - 1)
        while column < columns and column < end:
            found[column] += min(end, column + 1) - max(start, column)
            column += 1
    return [min(max(share, 0.0), 1.0) for share in found]


def axis_unit(wall_secs: float) -> tuple[str, float]:
    """The unit of the axis, and its seconds: about 1 to 200 of them are the whole run."""
    for name, secs in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if wall_secs >= 3 * secs:
            return name, secs
    return "seconds", 1.0
