"""A run's figures as scalars over time, in files that TensorBoard shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.ettr.figures import Figures


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value of a curve.

    Attributes:
        tag: the curve's name.
        at: seconds since the run's start.
        step: of the training.
        value: in the unit that the tag says.
    """

    tag: str
    at: float
    step: int
    value: float


def plan_scalars(figures: Figures) -> list[Scalar]:
    """All values in the order of time.

    The ratio is that of the time up to each save: work that was lost later counts as lost.
    """
    found = [Scalar("jaxckpt/stall_secs", s.at, s.step, s.stall_secs) for s in figures.saves]
    found += [
        Scalar("jaxckpt/write_gb_per_sec", w.at, w.step, w.nbytes / w.secs / 1e9)
        for w in figures.writes
        if w.secs > 0 and w.nbytes
    ]
    found += [
        Scalar("jaxckpt/lost_secs", r.at + r.down_secs, r.step, r.lost_secs)
        for r in figures.restarts
        if r.step is not None
    ]
    found += _ratios(figures)
    return sorted(found, key=lambda s: (s.at, s.tag))


def _ratios(figures: Figures) -> Iterator[Scalar]:
    training = sorted(
        ((s.start, s.end) for s in figures.timeline if s.kind == "training"), reverse=True
    )
    done = 0.0
    moments = sorted((s.at, s.step) for s in figures.saves)
    for at, step in [*moments, (figures.wall_secs, figures.last_step or 0)]:
        while training and training[-1][1] <= at:
            start, end = training.pop()
            done += end - start
        begun = max(at - training[-1][0], 0.0) if training else 0.0
        if at > 0:
            yield Scalar("jaxckpt/ettr", at, step, (done + begun) / at)


def to_tensorboard(figures: Figures, directory: str | Path) -> None:
    """Writes an events file into a directory, which is made if it is not there.

    Raises:
        InvalidOptionsError: the package tensorboard is missing.
        OSError: the file can not be written.
    """
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        wanted = "the package tensorboard to be installed: pip install 'jaxckpt[tensorboard]'"
        raise InvalidOptionsError("tensorboard", str(directory), wanted) from error
    events: Any = event_pb2
    summaries: Any = summary_pb2
    Path(directory).mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(directory))
    try:
        for scalar in plan_scalars(figures):
            value = summaries.Summary.Value(tag=scalar.tag, simple_value=scalar.value)
            event = events.Event(
                wall_time=figures.began + scalar.at,
                step=scalar.step,
                summary=summaries.Summary(value=[value]),
            )
            writer.add_event(event)
    finally:
        writer.close()
