"""Random histories of steps for the tests of policies."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import strategies as st

from jaxckpt import policy

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def at(step: int, secs: float, metrics: Any = None) -> policy.StepInfo:
    return policy.StepInfo(step, START + dt.timedelta(seconds=secs), metrics)


@st.composite
def histories(draw: st.DrawFn, least: int = 0, most: int = 12) -> list[policy.StepInfo]:
    """Steps that ascend, at times that do not go back; with good, bad and missing metrics."""
    steps = sorted(draw(st.sets(st.integers(0, 60), min_size=least, max_size=most)))
    secs, found = 0.0, []
    for step in steps:
        secs += draw(st.integers(0, 100))
        loss = st.one_of(st.integers(-3, 3), st.floats(allow_nan=True), st.just("none of it"))
        metrics = draw(st.one_of(st.none(), st.just({}), st.builds(lambda x: {"loss": x}, loss)))
        found.append(at(step, secs, metrics))
    return found


single_keeps = st.one_of(
    st.builds(policy.KeepLast, st.integers(1, 4)),
    st.builds(policy.KeepEverySteps, st.integers(1, 20)),
    st.builds(policy.KeepEverySecs, st.integers(1, 300)),
    st.builds(policy.KeepBest, st.integers(1, 3), st.just("loss"), st.sampled_from(("min", "max"))),
    st.builds(policy.KeepSteps, st.sets(st.integers(0, 60), max_size=4)),
    st.just(policy.KeepAll()),
)
keeps = st.one_of(single_keeps, st.builds(policy.AnyKeep, st.lists(single_keeps, max_size=3)))
