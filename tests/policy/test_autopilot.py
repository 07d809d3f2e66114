"""The autopilot: what it does before it knows anything, what it sets, and when that moves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_histories import START, at

from jaxckpt import policy
from jaxckpt.errors import InvalidOptionsError

KNOWN = policy.Measurements(
    stall_secs=1.0, write_secs=50.0, restore_secs=420.0, step_secs=5.0, devices=16_384
)
MTBF_HOURS = 50_677 / 16_384


def context(measured: Any = KNOWN, **others: Any) -> policy.SaveContext:
    return policy.SaveContext(started=START, measured=measured, **others)


def wanted(measured: policy.Measurements, hours: float = MTBF_HOURS) -> policy.Choice:
    return policy.choose(
        stall_secs=measured.stall_secs or 0,
        mtbf_secs=3600 * hours,
        write_secs=measured.write_secs or 0,
        restore_secs=measured.restore_secs or 0,
        step_secs=measured.step_secs or 0,
    )


def due(rule: Any, step: Any, previous: Any, said: policy.SaveContext) -> bool:
    return rule.should_save(step, previous, context=said)


def test_it_saves_early_once_to_learn_what_a_save_costs() -> None:
    pilot = policy.Autopilot(mtbf_hours=3)
    nothing = context(policy.Measurements())
    assert not due(pilot, at(1, 5), [], nothing)
    assert pilot.choice is None
    assert policy.next_look(pilot, at(1, 5), [], context=nothing, step_secs=None) == 2
    steps = context(policy.Measurements(step_secs=5.0))
    assert [s for s in range(1, 6) if due(pilot, at(s, 5 * s), [], steps)] == [3, 4, 5]
    saved = [at(3, 15)]
    assert not due(pilot, at(4, 20), saved, steps)
    writing = replace(steps, is_saving_in_progress=True)
    assert not due(pilot, at(900, 4500), saved, writing), "one is on its way"
    measured = context(policy.Measurements(step_secs=5.0, stall_secs=1.0, write_secs=50.0))
    assert not due(pilot, at(30, 150), saved, measured)
    assert due(pilot, at(40, 200), saved, measured)
    before = [at(3, -9000)]
    assert not due(pilot, at(5, 10), before, steps), "an earlier life's save does not count"
    assert due(pilot, at(6, 15), before, steps)


def test_it_sets_the_best_interval_and_meets_it_at_the_nearest_step() -> None:
    pilot = policy.Autopilot(mtbf_hours=MTBF_HOURS)
    saved = [at(100, 500)]
    # 150 s of training and a stall of 1 s: the step after 149 s is nearer than that after 154 s.
    moments = [(s, 500 + 1 + 5 * (s - 100) - 2) for s in range(101, 140)]
    found = [s for s, secs in moments if due(pilot, at(s, secs), saved, context())]
    assert found[0] == 130
    assert pilot.choice == wanted(KNOWN)
    assert pilot.choice.interval_secs == 150
    assert not pilot.by_step_alone


def test_looks_get_closer_and_pass_over_nothing() -> None:
    pilot, saved, step, looks = policy.Autopilot(mtbf_hours=MTBF_HOURS), [at(0, 0)], 0, 0
    while not due(pilot, at(step, 5.0 * step), saved, context()):
        following = policy.next_look(
            pilot, at(step, 5.0 * step), saved, context=context(), step_secs=5.0
        )
        assert step < following <= 30
        step, looks = following, looks + 1
    assert (step, looks) == (30, 3)
    slow = replace(KNOWN, write_secs=140.0)
    writing = context(slow, is_saving_in_progress=True)
    late = policy.next_look(pilot, at(1, 149), saved, context=writing, step_secs=5.0)
    assert late == 2, "overdue: as soon as the writer is free"


def test_the_interval_moves_only_when_it_pays() -> None:
    pilot = policy.Autopilot(mtbf_hours=MTBF_HOURS)
    said = [pilot.choice]

    def told(**moved: Any) -> policy.Choice:
        due(pilot, at(9, 9), [at(1, 1)], context(replace(KNOWN, **moved)))
        assert pilot.choice is not None
        if pilot.choice is not said[-1]:
            said.append(pilot.choice)
        return pilot.choice

    first = told()
    assert told(stall_secs=1.15) is first, "7 % longer would be best"
    assert told(stall_secs=0.9, restore_secs=900.0, write_secs=80.0) is first
    longer = told(stall_secs=2.0)
    assert longer == wanted(replace(KNOWN, stall_secs=2.0))
    assert told(write_secs=400.0).limited_by == "write time"
    assert told() == first
    assert len(said) == 5


def test_stalls_beyond_the_budget_move_it_at_once() -> None:
    pilot = policy.Autopilot(mtbf_hours=MTBF_HOURS, stall_budget=0.02)
    for stall in (20.0, 20.5, 21.0):
        due(pilot, at(9, 9), [], context(replace(KNOWN, stall_secs=stall)))
        assert pilot.choice is not None
        assert pilot.choice.limited_by == "stall budget"
        assert stall <= 0.02 * (pilot.choice.interval_secs + stall)
    least = pilot.choice
    due(pilot, at(9, 9), [], context(replace(KNOWN, stall_secs=20.0)))
    assert pilot.choice is least


measurements = st.builds(
    policy.Measurements,
    stall_secs=st.floats(2e-3, 300),
    write_secs=st.one_of(st.none(), st.floats(0, 3000)),
    restore_secs=st.one_of(st.none(), st.floats(0, 3000)),
    step_secs=st.floats(0.01, 60),
    restarts=st.integers(0, 50),
    observed_secs=st.floats(0, 1e7),
    devices=st.integers(1, 100_000),
)


@given(st.lists(measurements, min_size=1, max_size=8), st.floats(0.005, 0.3))
def test_whatever_is_measured_it_stays_near_the_best_and_within_the_budget(
    told: list[policy.Measurements], budget: float
) -> None:
    pilot = policy.Autopilot(stall_budget=budget)
    for measured in told:
        due(pilot, at(9, 9), [], context(measured))
        mtbf = policy.learned_mtbf_secs(measured.restarts, measured.observed_secs, measured.devices)
        best = policy.choose(
            stall_secs=measured.stall_secs,
            mtbf_secs=mtbf,
            write_secs=measured.write_secs or 0,
            restore_secs=measured.restore_secs or 0,
            step_secs=measured.step_secs,
            stall_budget=budget,
        )
        interval = pilot.choice.interval_secs
        assert abs(best.interval_secs - interval) <= 0.1 * interval
        assert measured.stall_secs <= budget * (interval + measured.stall_secs) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("pilot", "measured", "hours"),
    [
        (policy.Autopilot(mtbf_hours=7), KNOWN, 7),
        (policy.Autopilot(device_mtbf_hours=16_384), KNOWN, 1),
        (policy.Autopilot(device_mtbf_hours=16_384, devices=4096), KNOWN, 4),
        (policy.Autopilot(), KNOWN, MTBF_HOURS),
        (policy.Autopilot(devices=1), KNOWN, 50_677),
        (
            policy.Autopilot(),
            replace(KNOWN, restarts=9, observed_secs=3600 * (10 - MTBF_HOURS)),
            1,
        ),
    ],
)
def test_failures_are_given_or_learned(
    pilot: policy.Autopilot, measured: policy.Measurements, hours: float
) -> None:
    due(pilot, at(9, 9), [], context(measured))
    assert pilot.choice is not None
    assert pilot.choice.interval_secs == wanted(measured, hours).interval_secs


def test_a_stall_that_no_clock_can_see_is_a_millisecond() -> None:
    pilot = policy.Autopilot(mtbf_hours=MTBF_HOURS)
    due(pilot, at(9, 9), [], context(policy.Measurements(stall_secs=0.0, step_secs=0.01)))
    assert pilot.choice is not None
    assert pilot.choice.interval_secs == pytest.approx(
        policy.best_interval(1e-3, 3600 * MTBF_HOURS), abs=0.01
    )


def test_in_a_loop_that_measures_nothing_it_measures_by_itself() -> None:
    """A loop as orbax's: steps of 2 s, stalls of 4 s, writes of 15 s; times of saves are late."""
    pilot = policy.Autopilot(mtbf_hours=MTBF_HOURS)
    saved: list[policy.StepInfo] = []
    now, writes_until = 0.0, -1.0
    for step in range(1, 2000):
        said = policy.SaveContext(is_saving_in_progress=now < writes_until)
        if due(pilot, at(step, now), saved, said):
            writes_until = now + 15
            now += 4
            saved.append(at(step, now))
        now += 2
    assert saved[0].step == 4, "three steps after the first question"
    assert pilot.choice is not None
    best = policy.choose(stall_secs=4, mtbf_secs=3600 * MTBF_HOURS, write_secs=16, step_secs=2)
    assert pilot.choice == best
    gaps = {b.step - a.step for a, b in itertools.pairwise(saved[1:])}
    assert gaps == {round(best.interval_secs / 2)}
    assert policy.next_look(pilot, at(5, 0), saved, context=said, step_secs=2.0) == 6


def test_inside_orbax_it_saves_once_and_then_waits(tmp_path: Path) -> None:
    """With a failure in six years the second save is minutes away, however fast the machine."""
    pilot = policy.Autopilot(mtbf_hours=50_000)
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=pilot | policy.AtSteps({55}),
        preservation_policy=policy.KeepLast(2),
    )
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        saved = [
            step
            for step in range(60)
            if manager.save(step, args=ocp.args.StandardSave({"w": np.full(4, step)}))
        ]
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == saved
    assert len(saved) == 2
    assert saved[0] < 20
    assert saved[1] == 55
    assert pilot.choice is not None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mtbf_hours": 0}, "mtbf_hours=0 can not be used: expected hours, more than 0"),
        ({"device_mtbf_hours": -1}, "device_mtbf_hours=-1"),
        ({"mtbf_hours": 1, "device_mtbf_hours": 1}, "of the job or of a device, not both"),
        ({"stall_budget": 0}, "expected a share between 0 and 1"),
        ({"stall_budget": 3}, "expected a share between 0 and 1"),
        ({"devices": 0}, "devices=0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=text):
        policy.Autopilot(**arguments)


def test_equal_arguments_make_equal_pilots() -> None:
    one, other = policy.Autopilot(mtbf_hours=3), policy.Autopilot(mtbf_hours=3)
    due(one, at(9, 9), [], context())
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert one != policy.Autopilot(mtbf_hours=4)
