"""The simulated month: the simulator against the sum, the autopilot against a sweep."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest

from benchmarks.machine import Machine
from benchmarks.month import (
    GIVEN,
    LEARNED,
    OFTEN,
    SCENARIOS,
    SIXTY,
    TEN,
    _one_seed,
    _row,
    bars,
    best_fixed,
    sweep_steps,
    tables,
    write_month,
)
from benchmarks.month_simulator import AsOftenAsPossible, _Writer, simulate
from jaxckpt import policy

DAY = 86400.0
LLAMA = SCENARIOS[0]


@pytest.mark.parametrize("steps", [12, 30, 120, 720])
def test_the_simulator_finds_what_the_sum_expects(steps: int) -> None:
    """Six months of about 233 failures each: their mean is within 1.5 % of the sum."""
    found = [simulate(LLAMA, lambda: policy.EverySteps(steps), 30 * DAY, s).ettr for s in range(6)]
    expected = policy.expected_ettr(
        steps * LLAMA.step,
        stall_secs=LLAMA.stall,
        mtbf_secs=LLAMA.mtbf,
        write_secs=LLAMA.write,
        restore_secs=LLAMA.restore + LLAMA.restart,
    )
    assert statistics.mean(found) == pytest.approx(expected, rel=0.015)


@pytest.mark.parametrize("scenario", SCENARIOS[:3], ids=lambda one: one.name)
def test_the_autopilot_is_within_a_hundredth_of_the_best_of_a_fine_sweep(scenario) -> None:
    outcomes = [_one_seed(scenario, 10 * DAY, seed) for seed in range(3)]
    rows = [_row(scenario, name, [one[name] for one in outcomes]) for name in outcomes[0]]
    found = bars(rows)
    assert [bar.what.count("autopilot") for bar in found] == [1, 1]
    assert all(bar.met for bar in found), found
    named = {row.policy: row for row in rows}
    assert named[GIVEN].median > named[SIXTY].median
    assert named[GIVEN].stalled <= 0.031
    assert best_fixed(rows, scenario.name).median >= named[TEN].median


def test_the_same_seed_is_the_same_month() -> None:
    def run(seed: int):
        return simulate(LLAMA, AsOftenAsPossible, 2 * DAY, seed)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_without_failures_only_stalls_cost() -> None:
    safe = replace(LLAMA, mtbf=1e12)
    found = simulate(safe, lambda: policy.EverySteps(100), 10 * DAY, 0)
    assert found.failures == 0
    assert found.ettr + found.stalled == pytest.approx(1, abs=1e-4)
    assert found.saves == pytest.approx(10 * DAY / 501, abs=2)


def test_a_job_that_never_comes_back_keeps_nothing() -> None:
    hopeless = replace(LLAMA, mtbf=10.0)
    assert simulate(hopeless, policy.Autopilot, DAY, 0).ettr == pytest.approx(0, abs=0.001)


def test_the_writer_takes_the_newest_and_drops_what_was_overtaken() -> None:
    writer = _Writer()
    writer.take(0.0, 1, ready=1.0, needs=9.0)
    writer.take(3.0, 2, ready=4.0, needs=9.0)
    writer.take(6.0, 3, ready=7.0, needs=9.0)
    assert list(writer.until(9.9)) == []
    assert list(writer.until(10.0)) == [10.0]
    assert writer.durable_step == 1
    assert list(writer.until(19.0)) == [13.0]
    assert writer.durable_step == 3
    assert not writer.busy()
    writer.take(20.0, 4, ready=21.0, needs=9.0)
    writer.forget()
    assert list(writer.until(99.0)) == []
    assert writer.durable_step == 3


def test_sweeps_are_fine_and_reach_far() -> None:
    for scenario in SCENARIOS:
        steps = sweep_steps(scenario)
        best = policy.best_interval(scenario.stall, scenario.mtbf) / scenario.step
        assert steps[0] <= max(1, 0.4 * best)
        assert steps[-1] >= 7 * best
        wide = [b / a for a, b in itertools.pairwise(steps) if a >= 10]
        assert max(wide) <= 1.2


def test_what_is_written(tmp_path) -> None:
    outcomes = [_one_seed(LLAMA, DAY, seed) for seed in range(2)]
    rows = [_row(LLAMA, name, [one[name] for one in outcomes]) for name in outcomes[0]]
    machine = Machine("a day", "none", "", 1, 1.0, "", "", [0.0], "3", {}, "a commit")
    write_month(str(tmp_path), machine, 2, rows, bars(rows))
    text = (tmp_path / "month.md").read_text()
    for word in (GIVEN, LEARNED, OFTEN, "best of the sweep", "seeds 0 to 1", "a commit"):
        assert word in text
    assert len(tables(rows)) == 1
    assert (tmp_path / "month.svg").read_text().startswith("<?xml")
    assert (tmp_path / "month.json").stat().st_size > 1000
