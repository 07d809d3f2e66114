"""A month of a large job, with failures: ``python -m benchmarks.month``.

Nothing is saved and no clock is read: the simulator (`month_simulator.py`) counts the time of a job
whose failures come as often as in Meta's report on Llama 3. The policies are the library's own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

import jax
from rich.console import Console

from benchmarks.bars import Bar
from benchmarks.machine import Machine, describe
from benchmarks.month_draw import draw
from benchmarks.month_simulator import AsOftenAsPossible, Outcome, Scenario, simulate
from benchmarks.tables import Table, about, bars_table, markdown, rich_table
from jaxckpt import policy
from jaxckpt.policy.failures import DEVICE_HOURS

MONTH_SECS = 30 * 86400.0
SEEDS = 20
WITHIN = 0.99
GIVEN, LEARNED, TEN, SIXTY, OFTEN = (
    "autopilot, mean time between failures given",
    "autopilot, learned from restarts",
    "every 10 minutes",
    "every 60 minutes",
    "as often as possible",
)
_LEAST, _MOST, _FINE = 1 / 3, 8.0, 1.13
_LONGEST_SECS = 4500.0
_METHOD = (
    "method: a simulated month of 30 days, for each policy and interval with the same seeds and so "
    "with the same failures; medians over the seeds with the least and the most; stalls and writes "
    "vary by up to a fifth; after each failure the autopilot begins anew and knows the number of "
    "restarts alone; the sweep is of fixed numbers of steps"
)


def _mtbf(devices: int) -> float:
    return DEVICE_HOURS * 3600 / devices


_LLAMA = Scenario(
    name="405 B on 16,384 GPUs",
    stall=1.0,
    write=50.0,
    restore=120.0,
    restart=300.0,
    step=5.0,
    mtbf=_mtbf(16_384),
    devices=16_384,
)
SCENARIOS = (
    _LLAMA,
    replace(_LLAMA, name="slow storage", write=600.0, restore=900.0),
    replace(_LLAMA, name="long stall", stall=30.0, write=90.0),
    replace(_LLAMA, name="short stall, fast storage", stall=0.1, write=6.0, restore=20.0),
    replace(_LLAMA, name="three times the failures", mtbf=_mtbf(3 * 16_384)),
    replace(
        _LLAMA,
        name="70 B on 1,024 GPUs",
        stall=2.0,
        write=40.0,
        mtbf=_mtbf(1_024),
        devices=1_024,
    ),
)


@dataclass(frozen=True)
class Row:
    """One policy in one scenario, over all seeds; times in seconds, the others are shares.

    Attributes:
        interval: training between saves; the median of what the autopilot had in force, None where
            there is no such figure.
        expected: the ETTR that `jaxckpt.policy.expected_ettr` gives for that interval.
    """

    scenario: str
    policy: str
    interval: float | None
    expected: float | None
    median: float
    least: float
    most: float
    stalled: float
    saves: float
    failures: float


def main() -> None:
    """Simulates every scenario with every policy and writes three files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.month", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--days", type=float, default=MONTH_SECS / 86400)
    parser.add_argument("--out", default="docs/benchmarks", help="directory of the results")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    machine = replace(describe("."), device="none; all is simulated", disk="not used")
    rows = measure(SCENARIOS, args.seeds, args.days * 86400)
    found = bars(rows)
    for one in (*tables(rows), bars_table(found)):
        Console(width=160).print(rich_table(one))
    os.makedirs(args.out, exist_ok=True)
    write_month(args.out, machine, args.seeds, rows, found)


def measure(scenarios: tuple[Scenario, ...], seeds: int, secs: float) -> list[Row]:
    """All rows; the seeds are 0, 1, ... and run in processes of their own."""
    rows: list[Row] = []
    fresh = multiprocessing.get_context("spawn")  # a fork of a process with jax may hang
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=fresh) as pool:
        for scenario in scenarios:
            tasks = [pool.submit(_one_seed, scenario, secs, seed) for seed in range(seeds)]
            outcomes = [task.result() for task in tasks]
            rows += [_row(scenario, name, [one[name] for one in outcomes]) for name in outcomes[0]]
    return rows


def _one_seed(scenario: Scenario, secs: float, seed: int) -> dict[str, Outcome]:
    makers = {
        GIVEN: lambda: policy.Autopilot(mtbf_hours=scenario.mtbf / 3600),
        LEARNED: policy.Autopilot,
        TEN: lambda: policy.every_minutes(10),
        SIXTY: lambda: policy.every_minutes(60),
        OFTEN: AsOftenAsPossible,
    }
    found = {name: simulate(scenario, make, secs, seed) for name, make in makers.items()}
    for steps in sweep_steps(scenario):
        outcome = simulate(scenario, lambda n=steps: policy.EverySteps(n), secs, seed)
        interval = steps * scenario.step
        found[_fixed(interval)] = replace(outcome, interval=interval)
    return found


def sweep_steps(scenario: Scenario) -> list[int]:
    """Numbers of steps around the best interval, each an eighth or so more than the one before."""
    best = policy.best_interval(scenario.stall, scenario.mtbf)
    interval, found = _LEAST * best, set[int]()
    while interval < max(_MOST * best, _LONGEST_SECS):
        found.add(max(1, round(interval / scenario.step)))
        interval *= _FINE
    return sorted(found)


def _fixed(interval: float) -> str:
    return f"every {interval:g} s of training"


def _row(scenario: Scenario, name: str, outcomes: list[Outcome]) -> Row:
    ettrs = [one.ettr for one in outcomes]
    intervals = [one.interval for one in outcomes if one.interval is not None]
    interval = statistics.median(intervals) if intervals else None
    interval = {TEN: 600.0, SIXTY: 3600.0}.get(name, interval)
    expected = interval and policy.expected_ettr(
        interval,
        stall_secs=scenario.stall,
        mtbf_secs=scenario.mtbf,
        write_secs=scenario.write,
        restore_secs=scenario.restore + scenario.restart,
    )
    return Row(
        scenario.name,
        name,
        interval,
        expected,
        statistics.median(ettrs),
        min(ettrs),
        max(ettrs),
        statistics.median(one.stalled for one in outcomes),
        statistics.median(one.saves for one in outcomes),
        statistics.median(one.failures for one in outcomes),
    )


def best_fixed(rows: list[Row], scenario: str) -> Row:
    """The fixed interval with the best median."""
    named = {GIVEN, LEARNED, OFTEN}
    fixed = [row for row in rows if row.scenario == scenario and row.policy not in named]
    return max(fixed, key=lambda row: row.median)


def names(rows: list[Row]) -> list[str]:
    """The scenarios in their order."""
    return list(dict.fromkeys(row.scenario for row in rows))


def bars(rows: list[Row]) -> list[Bar]:
    """The autopilot against the best of the sweep."""
    found: list[Bar] = []
    for name in names(rows):
        best = best_fixed(rows, name)
        for row in rows:
            if row.scenario == name and row.policy in (GIVEN, LEARNED):
                share = row.median / best.median
                what = f"{name}: ETTR of the {row.policy}, against the best fixed interval"
                found.append(Bar(what, f"at least {WITHIN:g}x", f"{share:.4f}x", share >= WITHIN))
    return found


def tables(rows: list[Row]) -> list[Table]:
    """One table for each scenario: the policies, and the best of the sweep."""
    return [_table(rows, name) for name in names(rows)]


def _table(rows: list[Row], name: str) -> Table:
    best = best_fixed(rows, name)
    wanted = (GIVEN, LEARNED, TEN, SIXTY, OFTEN)
    shown = [row for row in rows if row.scenario == name and row.policy in wanted]
    lines = [
        (
            label,
            f"{row.interval:,.0f}" if row.interval else "",
            f"{row.median:.4f}",
            f"{row.least:.4f} - {row.most:.4f}",
            f"{row.expected:.4f}" if row.expected else "",
            f"{row.median / best.median:.4f}x",
            f"{row.stalled:.2%}",
            f"{row.saves:,.0f}",
            f"{row.failures:.0f}",
        )
        for label, row in [*((row.policy, row) for row in shown), ("best of the sweep", best)]
    ]
    header = (
        "", "interval s", "ETTR", "min - max", "expected", "of the best", "stalled", "saves",
        "failures",
    )  # fmt: skip
    return Table(name, header, lines)


def _settings() -> str:
    return "\n".join(
        f"- {s.name}: stall {s.stall:g} s, write {s.write:g} s, restore {s.restore:g} s, restart "
        f"{s.restart:g} s, step {s.step:g} s, a failure every {s.mtbf / 3600:.2f} h"
        for s in SCENARIOS
    )


def write_month(out: str, machine: Machine, seeds: int, rows: list[Row], found: list[Bar]) -> None:
    """``month.md``, ``month.json`` and ``month.svg``."""
    draw(rows, os.path.join(out, "month.svg"), (GIVEN, LEARNED, OFTEN), TEN, SIXTY)
    parts = ["# A month with failures", about(machine, f"{_METHOD}; seeds 0 to {seeds - 1}")]
    parts.append("![ETTR over the interval between saves](month.svg)")
    parts += [markdown(one) for one in (*tables(rows), bars_table(found))]
    parts += ["## Scenarios", _settings()]
    with open(os.path.join(out, "month.md"), "w") as file:
        file.write("\n\n".join(parts) + "\n")
    content = {
        "machine": asdict(machine),
        "seeds": seeds,
        "scenarios": [asdict(one) for one in SCENARIOS],
        "rows": [asdict(row) for row in rows],
        "bars": [asdict(bar) for bar in found],
    }
    with open(os.path.join(out, "month.json"), "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
