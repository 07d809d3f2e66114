"""Medians of measurements, and measurements from questions alone."""

from __future__ import annotations

import pytest
from policy_histories import START, at

from jaxckpt import policy
from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.meter import QuestionMeter


def test_nothing_is_known_at_first() -> None:
    assert policy.Meter(devices=8, restarts=2, observed_secs=50).measured() == policy.Measurements(
        restarts=2, observed_secs=50, devices=8
    )


def test_medians_of_the_last_few() -> None:
    meter = policy.Meter(window=3)
    for secs in (100.0, 1.0, 2.0, 3.0):
        meter.step(secs, count=2)
    meter.saved(0.5)
    meter.saved(-1.0)  # a clock that went back
    meter.durable(9.0)
    meter.restored(20.0)
    found = meter.measured()
    assert (found.step_secs, found.stall_secs) == (2.0, 0.25)
    assert (found.write_secs, found.restore_secs) == (9.0, 20.0)
    assert found.observed_secs == 2 * 106 + 0.5 + 20, "a write is beside the training"


def test_wrong_arguments_are_refused() -> None:
    for arguments, text in (
        ({"devices": 0}, "devices=0"),
        ({"window": 0}, "window=0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"observed_secs": -1.0}, "observed_secs=-1.0"),
    ):
        with pytest.raises(InvalidOptionsError, match=text):
            policy.Meter(**arguments)


def test_questions_alone_show_steps_stalls_and_writes() -> None:
    """Steps of 2 s; a save at step 5 stops training for 7 s and is on its way for 15 s."""
    meter, saved = QuestionMeter(devices=4), []
    for step in range(13):
        now = at(step, 2 * step + (7 if step > 5 else 0))
        writing = 10 <= (now.time - START).total_seconds() < 25
        found = meter.asked(now, saved, policy.SaveContext(is_saving_in_progress=writing))
        again = meter.asked(now, saved, policy.SaveContext(is_saving_in_progress=writing))
        assert again == found, "the manager asks again when it saves"
        if step == 5:
            saved = [at(5, 17)]  # orbax notes the time at which the call returned
        if step < 6:
            assert (found.stall_secs, found.write_secs) == (None, None)
    assert (found.step_secs, found.stall_secs, found.devices) == (2.0, 7.0, 4)
    assert found.write_secs == 15.0
    assert meter.started == START


def test_steps_of_an_earlier_life_and_a_loop_that_goes_back_are_no_saves() -> None:
    meter, idle = QuestionMeter(devices=1), policy.SaveContext()
    before = [at(10, -500)]
    for step in (10, 11, 12):
        found = meter.asked(at(step, 3 * step), before, idle)
    assert (found.step_secs, found.stall_secs, found.write_secs) == (3.0, None, None)
    meter.asked(at(2, 40), before, idle)
    found = meter.asked(at(4, 46), before, idle)
    assert (found.step_secs, found.stall_secs) == (3.0, None), "two steps in 6 s"
