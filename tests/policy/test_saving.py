"""When a step is due, and when to ask again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint.checkpoint_managers import save_decision_policy as theirs
from policy_histories import START, at

from jaxckpt import policy
from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.saving import FAR

NOTHING = policy.SaveContext()
STARTED = policy.SaveContext(started=START)


def due(rule: Any, step: policy.StepInfo, previous: Any = (), context: Any = NOTHING) -> bool:
    return rule.should_save(step, previous, context=context)


def look(rule: Any, step: policy.StepInfo, previous: Any, context: Any, step_secs: Any) -> int:
    return policy.next_look(rule, step, previous, context=context, step_secs=step_secs)


def test_by_number() -> None:
    assert [s for s in range(12) if due(policy.EverySteps(5), at(s, 0))] == [0, 5, 10]
    assert [s for s in range(12) if due(policy.AtSteps({3, 11}), at(s, 0))] == [3, 11]


def test_by_time_since_the_last_save_or_the_start() -> None:
    rule = policy.every_minutes(10)
    assert rule == policy.EverySecs(600)
    assert due(rule, at(1, 0)), "where nobody says when training began: at once"
    assert not due(rule, at(1, 599), context=STARTED)
    assert due(rule, at(1, 600), context=STARTED)
    assert not due(rule, at(9, 1199), [at(5, 600)], STARTED)
    assert due(rule, at(9, 1200), [at(5, 600)], STARTED)
    assert due(rule, at(9, 1200), [at(5, 600)]), "without a start as well"
    before = [at(5, -7200)]
    assert not due(rule, at(6, 10), before, STARTED), "a save of an earlier life does not count"


def test_a_time_without_a_zone_is_utc() -> None:
    naive = policy.StepInfo(1, START.replace(tzinfo=None))
    assert not due(policy.EverySecs(60), at(2, 59), [naive])
    assert due(policy.EverySecs(60), at(2, 60), [naive])


def test_on_preemption() -> None:
    told = policy.SaveContext(reached_preemption=True)
    assert due(policy.OnPreemption(), at(1, 0), context=told)
    assert not due(policy.OnPreemption(), at(1, 0))


class _Counts:
    """A foreign policy that wants to be asked every time."""

    def __init__(self) -> None:
        self.asked = 0

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        self.asked += 1
        return False


def test_any_asks_all_of_them() -> None:
    foreign = _Counts()
    for rule in (policy.EverySteps(1) | foreign, foreign | policy.EverySteps(1)):
        assert isinstance(rule, policy.AnySave)
        assert due(rule, at(3, 0))
    assert foreign.asked == 2
    assert not due(policy.AnySave(()), at(3, 0))


def test_orbax_policies_take_our_facts() -> None:
    told = policy.SaveContext(reached_preemption=True)
    assert due(theirs.FixedIntervalPolicy(5), at(10, 0))
    assert due(theirs.SpecificStepsPolicy({10}), at(10, 0))
    assert due(theirs.InitialSavePolicy(), at(10, 0))
    assert not due(theirs.InitialSavePolicy(), at(10, 0), [at(1, 0)])
    assert due(theirs.PreemptionCheckpointingPolicy(), at(10, 0), context=told)
    rule = theirs.FixedIntervalPolicy(5) | policy.AtSteps({3})
    assert [s for s in range(11) if due(rule, at(s, 0))] == [0, 3, 5, 10]
    rule = theirs.AnySavePolicy([policy.AtSteps({3}), theirs.FixedIntervalPolicy(5)])
    assert [s for s in range(11) if due(rule, at(s, 0))] == [0, 3, 5, 10]


def test_who_needs_to_talk() -> None:
    assert policy.by_step_alone(policy.EverySteps(5) | policy.AtSteps({1}))
    for rule in (
        policy.EverySecs(5),
        policy.OnPreemption(),
        policy.EverySteps(5) | policy.OnPreemption(),
        policy.EverySteps(5) | theirs.InitialSavePolicy(),
        theirs.FixedIntervalPolicy(5),
    ):
        assert not policy.by_step_alone(rule)


@given(
    st.one_of(
        st.builds(policy.EverySteps, st.integers(1, 30)),
        st.builds(policy.AtSteps, st.sets(st.integers(0, 100))),
        st.builds(
            lambda n, steps: policy.EverySteps(n) | policy.AtSteps(steps),
            st.integers(1, 30),
            st.sets(st.integers(0, 100)),
        ),
    ),
    st.integers(0, 100),
)
def test_rules_by_number_know_exactly_when_to_look(rule: Any, step: int) -> None:
    found = look(rule, at(step, 0), (), NOTHING, None)
    assert found > step
    assert not any(due(rule, at(s, 0)) for s in range(step + 1, min(found, 200)))
    assert found == FAR or due(rule, at(found, 0))


@given(st.floats(0.1, 1e4), st.floats(0.01, 100), st.floats(0, 1e4))
def test_looks_come_before_the_time_and_soon_reach_it(
    secs: float, step_secs: float, elapsed: float
) -> None:
    """With steps as long as was thought, no due step is passed over, in few looks."""
    rule, step, looks = policy.EverySecs(secs), 0, 0
    while not due(rule, at(step, elapsed + step * step_secs), context=STARTED):
        now = at(step, elapsed + step * step_secs)
        following = look(rule, now, (), STARTED, step_secs)
        assert following > step
        early = at(following - 1, elapsed + (following - 1) * step_secs)
        assert following == step + 1 or not due(rule, early, context=STARTED)
        step, looks = following, looks + 1
    assert looks <= 10
    assert look(rule, at(step, 1e6), (), STARTED, step_secs) == step + 1


def test_when_to_look_without_knowledge() -> None:
    assert look(policy.EverySecs(100), at(3, 0), (), STARTED, None) == 4
    assert look(policy.EverySecs(100), at(3, 0), (), NOTHING, 1.0) == 4
    assert look(policy.EverySecs(100), at(3, 0), (), STARTED, 1.0) == 93
    assert look(policy.OnPreemption(), at(3, 0), (), STARTED, 1.0) == FAR
    assert look(theirs.FixedIntervalPolicy(5), at(3, 0), (), STARTED, 1.0) == 4
    both = policy.OnPreemption() | policy.EverySecs(100) | policy.EverySteps(50)
    assert look(both, at(3, 0), (), STARTED, 1.0) == 50
    assert look(policy.AnySave(()), at(3, 0), (), STARTED, 1.0) == FAR


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: policy.EverySteps(0), "EverySteps.n=0 can not be used: expected a whole number"),
        (lambda: policy.EverySecs(0), "EverySecs.secs=0 can not be used: expected seconds"),
        (lambda: policy.EverySecs(float("nan")), "expected seconds, more than 0"),
        (lambda: policy.EverySecs("10"), "expected seconds, more than 0"),
        (lambda: policy.every_minutes(-1), "minutes=-1 can not be used: expected minutes"),
        (lambda: policy.AtSteps({1.5}), "expected step numbers"),
        (lambda: policy.AnySave([policy.KeepAll()]), "an object with a method should_save"),
        (lambda: policy.AnySave(3), "expected a list of policies"),
        (lambda: policy.EverySteps(5) | 3, "an object with a method should_save"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=text):
        make()
