"""The sums against published figures, against one another, and against a count of cases."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxckpt import policy
from jaxckpt.errors import InvalidOptionsError
from jaxckpt.policy.interval import said

MINUTE, HOUR = 60.0, 3600.0
secs = st.floats(1e-3, 1e4)
means = st.floats(60, 1e8)


@pytest.mark.parametrize(
    ("mtbf", "minutes", "digits"),
    [(24 * HOUR, 117, 0), (6 * HOUR, 57, 0), (15 * MINUTE, 9.1, 1)],
)
def test_daly_2006_figures_3_to_5(mtbf: float, minutes: float, digits: int) -> None:
    """Dumps of 5 minutes, restarts of 10: the optima that the captions of its figures state."""
    assert round(policy.daly(5 * MINUTE, mtbf) / MINUTE, digits) == minutes
    exact = policy.best_interval(5 * MINUTE, mtbf)
    assert exact == pytest.approx(policy.daly(5 * MINUTE, mtbf), rel=0.01)


def test_young_1974() -> None:
    assert policy.young(5 * MINUTE, 24 * HOUR) == pytest.approx(120 * MINUTE)
    assert policy.young(0, HOUR) == policy.daly(0, HOUR) == policy.best_interval(0, HOUR) == 0
    assert policy.daly(3 * HOUR, HOUR) == HOUR, "no use in saving more often than jobs fail"


@given(st.floats(1e-9, 1), means)
def test_the_best_interval_solves_its_equation(share: float, mtbf: float) -> None:
    """Also for a stall of a billionth of the mean time, where the terms nearly cancel."""
    x = policy.best_interval(share * mtbf, mtbf) / mtbf
    assert 0 < x < 1
    assert -math.log1p(-x) - x == pytest.approx(share, rel=1e-6 + 1e-15 / share)


@given(st.floats(1e-7, 0.2), means)
def test_the_three_formulas_agree_where_stalls_are_short(share: float, mtbf: float) -> None:
    exact = policy.best_interval(share * mtbf, mtbf)
    assert policy.daly(share * mtbf, mtbf) == pytest.approx(exact, rel=0.02 * share + 1e-6)
    assert policy.young(share * mtbf, mtbf) == pytest.approx(exact, rel=math.sqrt(share))


@given(secs, means, st.floats(0.05, 20))
def test_no_interval_is_better_than_the_best(stall: float, mtbf: float, times: float) -> None:
    assume(stall < mtbf)
    best = policy.best_interval(stall, mtbf)
    there = policy.expected_ettr(best, stall_secs=stall, mtbf_secs=mtbf)
    other = policy.expected_ettr(times * best, stall_secs=stall, mtbf_secs=mtbf)
    assert 0 < there <= 1
    assert other <= there * (1 + 1e-9)


def test_what_a_save_that_is_waited_for_expects_is_daly_s_model() -> None:
    """Daly 2006: T = M exp(R/M) (exp((interval + dump)/M) - 1) Ts / interval."""
    mtbf, dump, restart, interval = 6 * HOUR, 5 * MINUTE, 10 * MINUTE, 57 * MINUTE
    slowdown = mtbf * math.exp(restart / mtbf) * math.expm1((interval + dump) / mtbf) / interval
    found = policy.expected_ettr(
        interval, stall_secs=dump, mtbf_secs=mtbf, write_secs=dump, restore_secs=restart
    )
    assert found == pytest.approx(1 / slowdown)


def test_the_expected_ettr_is_what_a_count_of_attempts_finds() -> None:
    """Attempts are drawn and counted by hand; the mean of 200,000 has an error of 0.2 %."""
    rng = random.Random(7)
    mtbf, stall, write, restore, interval = 1000.0, 5.0, 60.0, 30.0, 110.0
    kept = total = 0.0
    for _ in range(200_000):
        lives = rng.expovariate(1 / mtbf)
        total += lives
        if lives < restore:
            continue
        durable = (lives - restore - (interval + write)) // (interval + stall) + 1
        kept += max(0.0, durable) * interval
    found = policy.expected_ettr(
        interval, stall_secs=stall, mtbf_secs=mtbf, write_secs=write, restore_secs=restore
    )
    assert kept / total == pytest.approx(found, rel=0.01)


@given(secs, means, secs, secs)
def test_write_and_restore_cost_but_do_not_move_the_best(
    stall: float, mtbf: float, write: float, restore: float
) -> None:
    assume(max(stall, write, restore) < mtbf)
    plain = policy.choose(stall_secs=stall, mtbf_secs=mtbf)
    late = policy.choose(stall_secs=stall, mtbf_secs=mtbf, write_secs=write, restore_secs=restore)
    assert late.expected_ettr < plain.expected_ettr
    if late.limited_by == "lost time":
        assert late.interval_secs == plain.interval_secs


@given(secs, means, st.floats(0, 1e4), st.floats(0, 300), st.floats(0.001, 0.5))
def test_the_choice_keeps_its_bounds(
    stall: float, mtbf: float, write: float, step: float, budget: float
) -> None:
    found = policy.choose(
        stall_secs=stall, mtbf_secs=mtbf, write_secs=write, step_secs=step, stall_budget=budget
    )
    interval = found.interval_secs
    assert stall / (interval + stall) <= budget * (1 + 1e-6)
    assert interval + stall >= write * (1 - 1e-6)
    if step > 0:
        assert interval / step == pytest.approx(max(1, round(interval / step)))
    assert (found.limited_by == "lost time") == (
        policy.best_interval(stall, mtbf) >= max(stall * (1 - budget) / budget, write - stall, step)
    )
    assert f"{said(interval)} of training" in found.why
    assert f"{found.expected_ettr:.4f}" in found.why


@given(secs, means, st.floats(1, 1e4), st.floats(1, 300))
def test_no_whole_number_of_steps_within_the_bounds_is_better(
    stall: float, mtbf: float, write: float, step: float
) -> None:
    assume(max(stall, write, step) < mtbf)
    found = policy.choose(stall_secs=stall, mtbf_secs=mtbf, write_secs=write, step_secs=step)
    count = round(found.interval_secs / step)
    for other in {max(1, count // 2), count - 1, count + 1, 2 * count} - {0}:
        interval = other * step
        if interval + stall >= write and stall <= 0.03 * (interval + stall):
            assert found.expected_ettr >= (1 - 1e-9) * policy.expected_ettr(
                interval, stall_secs=stall, mtbf_secs=mtbf, write_secs=write
            )


def test_what_it_says() -> None:
    mtbf = 50_677 * HOUR / 16_384
    found = policy.choose(
        stall_secs=1, mtbf_secs=mtbf, write_secs=50, restore_secs=420, step_secs=5
    )
    assert found.interval_secs == 150
    assert found.why == (
        "a save after every 2.5 min of training: a stall of 1 s and a failure every 3.09 h lose "
        "least time there (expected ETTR 0.9460)"
    )
    found = policy.choose(stall_secs=30, mtbf_secs=mtbf)
    assert found.limited_by == "stall budget"
    assert found.why == (
        "a save after every 16.2 min of training: least time would be lost at 13.3 min, but stalls "
        "of 30 s may take at most 3 % of the time (expected ETTR 0.9271)"
    )
    found = policy.choose(stall_secs=0.5, mtbf_secs=mtbf, write_secs=600)
    assert found.limited_by == "write time"
    assert "but a save needs 10 min until it is durable" in found.why
    found = policy.choose(stall_secs=0.001, mtbf_secs=600, step_secs=20)
    assert (found.limited_by, found.interval_secs) == ("step time", 20)
    assert "least time would be lost at 1.09 s, but one step takes 20 s" in found.why
    assert [said(x) for x in (0, 0.02, 1, 119, 120, 7200, 172800)] == [
        "0 s", "20 ms", "1 s", "119 s", "2 min", "2 h", "2 days",
    ]  # fmt: skip


def test_extremes_have_an_answer() -> None:
    free = policy.choose(stall_secs=0, mtbf_secs=HOUR)
    assert 0 < free.interval_secs < 1e-3
    assert free.expected_ettr == pytest.approx(1)
    hopeless = policy.choose(stall_secs=1e6, mtbf_secs=60, write_secs=2e6)
    assert hopeless.expected_ettr == 0
    slow = policy.expected_ettr(1, stall_secs=1, mtbf_secs=HOUR, write_secs=100)
    once = policy.expected_ettr(99, stall_secs=1, mtbf_secs=HOUR, write_secs=100)
    assert slow == pytest.approx(once * 0.5 / 0.99), "the writer sets the pace, stalls still cost"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: policy.choose(stall_secs=-1, mtbf_secs=1), "stall_secs=-1 .* seconds, 0 or more"),
        (lambda: policy.choose(stall_secs=1, mtbf_secs=0), "mtbf_secs=0 .* seconds, more than 0"),
        (lambda: policy.choose(stall_secs=1, mtbf_secs=1, stall_budget=1), "a share between"),
        (lambda: policy.choose(stall_secs=1, mtbf_secs=1, step_secs=-1), "step_secs=-1"),
        (lambda: policy.expected_ettr(0, stall_secs=1, mtbf_secs=1), "interval_secs=0"),
        (lambda: policy.young("1", 1), "stall_secs='1'"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=text):
        make()


def test_the_mean_time_between_failures_is_learned() -> None:
    prior = policy.learned_mtbf_secs(0, 0, 16_384)
    assert prior / HOUR == pytest.approx(54 * 24 / 419, rel=1e-4), "as Llama 3's report"
    assert policy.learned_mtbf_secs(0, 0, 8) / 86400 == pytest.approx(264, abs=0.5)
    assert policy.learned_mtbf_secs(1, prior, 16_384) == pytest.approx(prior)
    assert policy.learned_mtbf_secs(100, 100 * HOUR, 16_384) == pytest.approx(HOUR, rel=0.03)
    assert policy.learned_mtbf_secs(0, 100 * HOUR, 16_384) > 30 * prior
    with pytest.raises(InvalidOptionsError, match="devices=0"):
        policy.learned_mtbf_secs(0, 0, 0)
