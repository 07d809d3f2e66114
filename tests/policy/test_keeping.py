"""What is kept under random histories, and what nothing may ever remove."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint.checkpoint_managers import preservation_policy as theirs
from policy_histories import at, histories, keeps, single_keeps

from jaxckpt import policy
from jaxckpt.errors import InvalidOptionsError

CONTEXT = policy.KeepContext()


def kept(rule: Any, infos: list[policy.StepInfo]) -> list[int]:
    answers = rule.should_preserve(infos, context=CONTEXT)
    return [info.step for info, yes in zip(infos, answers, strict=True) if yes]


def test_what_each_keeps() -> None:
    losses = [3.0, math.nan, 1.0, None, 1.0, 2.0]
    infos = [
        at(10 * i, 60 * i, None if loss is None else {"loss": loss})
        for i, loss in enumerate(losses)
    ]
    assert kept(policy.KeepLast(2), infos) == [40, 50]
    assert kept(policy.KeepEverySteps(20), infos) == [0, 20, 40]
    assert kept(policy.KeepEverySecs(120), infos) == [0, 20, 40]
    assert kept(policy.KeepEverySecs(121), infos) == [0, 30]
    assert kept(policy.KeepBest(1, "loss"), infos) == [40], "of equal ones the newer"
    assert kept(policy.KeepBest(3, "loss"), infos) == [20, 40, 50]
    assert kept(policy.KeepBest(1, "loss", "max"), infos) == [0]
    assert kept(policy.KeepBest(9, "loss"), infos) == [0, 20, 40, 50], "NaN and none never"
    assert kept(policy.KeepBest(1, lambda m: -m["loss"]), infos) == [0]
    assert kept(policy.KeepBest(1, "accuracy"), infos) == []
    assert kept(policy.KeepSteps({30, 7}), infos) == [30]
    assert kept(policy.KeepAll(), infos) == [0, 10, 20, 30, 40, 50]
    both = policy.KeepLast(1) | policy.KeepBest(1, "loss", "max")
    assert kept(both, infos) == [0, 50]


@given(keeps, histories(), st.integers(0, 60))
def test_the_newest_and_the_one_just_saved_always_stay(
    rule: Any, infos: list[policy.StepInfo], just_saved: int
) -> None:
    gone = policy.removable(rule, infos, just_saved)
    left = [info.step for info in infos if info.step not in gone]
    assert gone == sorted(set(gone))
    assert set(gone) <= {info.step for info in infos}
    assert just_saved not in gone
    if infos:
        assert infos[-1].step in left
        assert set(kept(rule, infos)) <= set(left)
        assert set(left) <= {*kept(rule, infos), infos[-1].step, just_saved}


@given(histories(least=1), st.data())
def test_a_policy_that_keeps_nothing_does_not_empty_a_run(
    infos: list[policy.StepInfo], data: st.DataObject
) -> None:
    just_saved = data.draw(st.sampled_from(infos)).step
    left = {i.step for i in infos} - set(policy.removable(policy.KeepSteps(()), infos, just_saved))
    assert left == {infos[-1].step, just_saved}


@given(histories(), st.integers(1, 5), st.integers(0, 60))
def test_keep_last_keeps_so_many_and_what_was_just_saved(
    infos: list[policy.StepInfo], n: int, just_saved: int
) -> None:
    steps = [info.step for info in infos]
    found = policy.removable(policy.KeepLast(n), infos, just_saved)
    assert found == [s for s in steps[: max(0, len(steps) - n)] if s != just_saved]


@given(st.lists(single_keeps, max_size=4), histories())
def test_a_union_keeps_what_any_keeps(rules: list[Any], infos: list[policy.StepInfo]) -> None:
    wanted = set().union(*(kept(rule, infos) for rule in rules))
    assert set(kept(policy.AnyKeep(rules), infos)) == wanted
    for index in range(len(infos)):
        wanted_one = any(policy.must_keep(rule, infos, index) for rule in rules)
        assert policy.must_keep(policy.AnyKeep(rules), infos, index) == wanted_one


@given(keeps, histories(least=1), st.integers(1, 8))
def test_must_keep_holds_when_newer_steps_without_a_metric_follow(
    rule: Any, infos: list[policy.StepInfo], more: int
) -> None:
    """What must be kept is still kept after any number of newer steps that are no better."""
    last, secs = infos[-1].step, (infos[-1].time - infos[0].time).total_seconds()
    base = (infos[0].time - at(0, 0).time).total_seconds()
    later = [at(last + i, base + secs + 17 * i) for i in range(1, more + 1)]
    for index, info in enumerate(infos):
        if policy.must_keep(rule, infos, index):
            assert info.step in kept(rule, infos + later)


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), max_size=6),
    st.integers(1, 3),
)
def test_the_best_stays_the_best_beside_worse_ones(
    losses: list[int], worse: list[int], n: int
) -> None:
    """Strictly worse newer steps displace none of the best; a better one only the worst of them."""
    rule = policy.KeepBest(n, "loss")
    infos = [at(i, i, {"loss": loss}) for i, loss in enumerate(losses)]
    must = [i for i in range(len(infos)) if policy.must_keep(rule, infos, i)]
    assert len(must) == min(n, len(infos))
    more = [
        at(len(infos) + i, len(infos) + i, {"loss": max(losses) + w}) for i, w in enumerate(worse)
    ]
    assert set(must) <= set(kept(rule, infos + more))
    better = [*infos, at(99, 99, {"loss": min(losses) - 1})]
    assert len(set(must) - set(kept(rule, better))) == (1 if len(infos) >= n else 0)
    assert 99 in kept(rule, better)


def test_what_waits_is_dropped_under_keep_last_and_not_where_it_is_named() -> None:
    infos = [at(1, 1), at(2, 2), at(3, 3)]
    assert not policy.must_keep(policy.KeepLast(2), infos, 2)
    assert not policy.must_keep(policy.KeepLast(2) | policy.KeepSteps({3}), infos, 1)
    assert policy.must_keep(policy.KeepLast(2) | policy.KeepSteps({2}), infos, 1)
    assert policy.must_keep(policy.KeepAll(), infos, 0)
    assert policy.must_keep(policy.KeepEverySecs(2), infos, 2)
    assert not policy.must_keep(policy.KeepEverySecs(2), infos, 1)
    assert policy.must_keep(theirs.LatestN(2), infos, 1), "a foreign one can not say"
    assert not policy.must_keep(theirs.LatestN(2), infos, 0)


@given(histories(), st.integers(1, 4), st.integers(1, 20), st.integers(1, 300))
def test_orbax_keeps_the_same(infos: list[policy.StepInfo], n: int, k: int, secs: int) -> None:
    context = theirs.PreservationContext()
    pairs = [
        (policy.KeepLast(n), theirs.LatestN(n)),
        (policy.KeepEverySteps(k), theirs.EveryNSteps(k)),
        (policy.KeepEverySecs(secs), theirs.EveryNSeconds(secs)),
        (policy.KeepAll(), theirs.PreserveAll()),
    ]
    for ours, other in pairs:
        assert kept(ours, infos) == [
            info.step
            for info, yes in zip(infos, other.should_preserve(infos, context=context), strict=True)
            if yes
        ]


@given(st.lists(st.integers(-3, 3), max_size=10), st.integers(1, 4), st.booleans())
def test_orbax_keeps_the_same_best(values: list[int], n: int, most: bool) -> None:
    infos = [at(i, i, {"x": float(v)}) for i, v in enumerate(values)]
    other = theirs.BestN(get_metric_fn=lambda m: m["x"], reverse=not most, n=n)
    ours = policy.KeepBest(n, "x", "max" if most else "min")
    answers = other.should_preserve(infos, context=theirs.PreservationContext())
    assert ours.should_preserve(infos, context=CONTEXT) == list(answers)


def test_foreign_policies_join_by_or_and_remove_steps() -> None:
    infos = [at(i, i) for i in range(1, 7)]
    for rule in (
        policy.KeepSteps({2}) | theirs.LatestN(2),
        theirs.LatestN(2) | policy.KeepSteps({2}),
    ):
        assert isinstance(rule, policy.AnyKeep)
        assert policy.removable(rule, infos, 6) == [1, 3, 4]
    assert policy.removable(theirs.LatestN(1), infos, 3) == [1, 2, 4, 5]


class _Short:
    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        return [True]


def test_a_policy_that_answers_too_rarely_removes_nothing() -> None:
    infos = [at(1, 1), at(2, 2)]
    with pytest.raises(InvalidOptionsError, match=r"once for each of 2 checkpoints; .* 1 answers"):
        policy.removable(_Short(), infos, 2)
    with pytest.raises(InvalidOptionsError, match="answers once"):
        policy.removable(policy.KeepLast(1) | _Short(), infos, 2)
    with pytest.raises(InvalidOptionsError, match="answers once"):
        policy.must_keep(_Short(), infos, 0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: policy.KeepLast(0), "KeepLast.n=0 can not be used: expected a whole number"),
        (lambda: policy.KeepLast(True), "KeepLast.n=True"),
        (lambda: policy.KeepEverySteps(2.5), "KeepEverySteps.n=2.5"),
        (lambda: policy.KeepEverySecs(-1), "expected seconds, more than 0"),
        (lambda: policy.KeepBest(1, 7), "expected a name or a function of the metrics"),
        (lambda: policy.KeepBest(1, "loss", "least"), "expected 'min' or 'max'"),
        (lambda: policy.KeepSteps({-1}), "expected step numbers, 0 or more"),
        (lambda: policy.KeepSteps(5), "expected step numbers, 0 or more"),
        (lambda: policy.AnyKeep([7]), "an object with a method should_preserve"),
        (lambda: policy.AnyKeep(7), "expected a list of policies"),
        (lambda: policy.KeepLast(1) | policy.EverySteps(5), "a method should_preserve"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=text.replace("(", r"\(")):
        make()


def test_policies_are_values() -> None:
    assert policy.KeepLast(2) | policy.KeepAll() == policy.AnyKeep(
        [policy.KeepLast(2), policy.KeepAll()]
    )
    assert hash(policy.KeepSteps([2, 1])) == hash(policy.KeepSteps({1, 2}))
    three = policy.KeepLast(1) | policy.KeepAll() | policy.KeepSteps({3})
    assert len(tuple(three.policies)) == 3
