"""The accounting: random histories against the truth, and each definition by an example."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from history import Run, random_run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_records import records

from jaxckpt.ettr.account import account
from jaxckpt.ettr.figures import KINDS
from jaxckpt.ettr.records import Journal, Record
from jaxckpt.ettr.report import RunReport


def check_split(report: RunReport) -> None:
    parts = [report.secs_of(kind) for kind in KINDS]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(report.wall_secs, rel=1e-9, abs=1e-6)
    assert 0 <= (report.ettr or 0) <= 1 + 1e-9
    json.loads(report.to_json())


def tells_a_rate(run: Run) -> bool:
    lines = Counter(r.session for r in run.records() if r.kind == "steps")
    return max(lines.values(), default=0) > 1


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 1 << 32))
def test_random_histories_add_up_to_the_truth(seed: int) -> None:
    run = random_run(seed)
    truth, report = run.truth, run.report()
    check_split(report)
    # What a kill hides: the steps of the last second, and the call in which it died.
    hidden = truth.kills * (1.0 + 1.05 * run.step_secs)
    # Steps differ by a twentieth; where no session tells a step's usual time, its start counts.
    slack = 0.06 * (truth.lost_secs + sum(truth.work.values())) + 1e-3
    start_ups = 0.0 if tells_a_rate(run) else truth.first_steps
    assert truth.lost_secs - hidden - slack <= report.lost_secs
    assert report.lost_secs <= truth.lost_secs + slack + start_ups
    kept = sum(truth.work.values())
    assert kept - slack <= report.training_secs <= kept + slack + start_ups
    assert truth.lost_steps - hidden / run.step_secs - 1 <= report.lost_steps <= truth.lost_steps
    assert report.stall_secs == pytest.approx(truth.stall, abs=1e-3)
    assert report.restore_secs == pytest.approx(truth.restore, abs=1e-3)
    assert report.down_secs >= truth.down - 1e-3
    assert report.steps == len(truth.work)
    assert report.durable == truth.durable
    assert report.failures <= truth.kills


def at(t: float, kind: str, session: str = "a", **facts: Any) -> Record:
    return Record(session, t, kind, facts)


def start(wall: float, session: str = "a") -> Record:
    return at(0.0, "start", session, wall=wall)


def steps(t: float, first: int, last: int, secs: float, session: str = "a") -> Record:
    return at(t, "steps", session, first=first, last=last, secs=secs)


def report_of(*records: Record) -> RunReport:
    report = account(Journal(records, 0))
    check_split(report)
    return report


KILLED_AND_BACK = (
    start(1000.0),
    steps(10.0, 0, 1, 10.0),
    steps(19.0, 1, 10, 9.0),
    at(19.0, "save", step=10, stall=0.5, waited=0.25, bytes=1000),
    at(22.0, "durable", step=10, secs=3.0, write_secs=2.0, bytes=1000),
    steps(29.5, 10, 20, 10.0),
    at(29.5, "save", step=20, stall=0.5, bytes=1000),
    steps(40.0, 20, 30, 10.0),
    start(1100.0, "b"),
    at(5.0, "restore", "b", step=10, secs=4.0, bytes=1000),
    steps(12.0, 10, 11, 3.0, "b"),
    steps(31.0, 11, 30, 19.0, "b"),
    at(31.0, "dropped", "b", step=11, newer=30),
    at(31.0, "failed", "b", step=12, error="StorageError"),
    at(31.0, "choice", "b", interval_secs=12.5, why="few failures"),
    at(32.0, "end", "b"),
)


def test_a_killed_run_that_came_back() -> None:
    report = report_of(*KILLED_AND_BACK)
    assert report.wall_secs == 132.0
    assert report.training_secs == 10.0 + 20.0  # a second for the first of each session
    assert (report.lost_secs, report.lost_steps) == (20.0, 20)
    assert report.stall_secs == 1.0
    assert report.waited_secs == 0.25
    assert report.restore_secs == 4.0
    assert report.down_secs == 60.0
    assert report.other_secs == 132 - 30 - 20 - 1 - 4 - 60
    assert report.ettr == 30 / 132
    assert report.stall_share == 1 / 132
    assert (report.steps, report.last_step, report.sessions) == (30, 30, 2)
    assert (report.durable, report.dropped, report.failed) == (1, 1, 1)
    assert (report.stall.count, report.stall.median, report.stall.largest) == (2, 0.5, 0.5)
    assert report.stage_bytes_per_sec == 2000 / 0.75
    assert report.write_bytes_per_sec == 500.0
    assert report.restore_bytes_per_sec == 250.0
    assert (report.failures, report.mtbf_secs) == (1, 72.0)
    (restart,) = report.restarts
    assert (restart.at, restart.down_secs, restart.step) == (40.0, 60.0, 10)
    assert (restart.lost_steps, restart.lost_secs, restart.back_secs) == (20, 20.0, 72.0)
    assert not restart.clean
    assert report.choices[0].at == 131.0
    kinds = [(s.kind, s.start, s.end) for s in report.timeline]
    assert kinds == [
        ("training", 9.0, 19.0),
        ("stall", 19.0, 19.5),
        ("lost", 19.5, 29.5),
        ("write", 20.0, 22.0),
        ("stall", 29.5, 30.0),
        ("lost", 30.0, 40.0),
        ("down", 40.0, 100.0),
        ("restore", 105.0, 109.0),
        ("training", 111.0, 131.0),
    ]


def test_steps_are_lost_in_proportion_and_only_once() -> None:
    report = report_of(
        start(0.0),
        steps(1.0, 0, 1, 1.0),
        steps(11.0, 1, 11, 10.0),
        start(11.0, "b"),
        steps(1.0, 8, 9, 1.0, "b"),
        steps(4.0, 9, 12, 3.0, "b"),
        start(15.0, "c"),
        steps(1.0, 5, 6, 1.0, "c"),
        steps(8.0, 6, 13, 7.0, "c"),
    )
    assert [(r.lost_steps, r.lost_secs) for r in report.restarts] == [(3, 3.0), (7, 7.0)]
    assert (report.training_secs, report.lost_secs, report.down_secs) == (13.0, 10.0, 0.0)


def test_a_step_back_inside_a_session_is_lost_work_and_no_restart() -> None:
    report = report_of(start(0.0), steps(5.0, 0, 5, 5.0), steps(8.0, 3, 6, 3.0), at(8, "end"))
    assert (report.lost_steps, report.lost_secs, report.restarts) == (2, 2.0, ())


def test_a_clean_end_and_a_preemption_are_no_failures() -> None:
    for last in (at(5.0, "end"), at(5.0, "preempted")):
        report = report_of(start(0.0), steps(5.0, 0, 5, 5.0), last, start(9.0, "b"))
        assert (report.failures, report.mtbf_secs) == (0, None)
        assert report.restarts[0].step is None
        assert report.restarts[0].back_secs is None


def test_a_clock_set_back_makes_no_negative_gap() -> None:
    report = report_of(
        start(1e9), steps(5.0, 0, 5, 5.0), start(5.0, "b"), steps(5.0, 5, 9, 5.0, "b")
    )
    assert (report.wall_secs, report.down_secs) == (10.0, 0.0)


def test_who_only_looks_on_is_left_out() -> None:
    report = report_of(
        start(0.0),
        steps(5.0, 0, 5, 5.0),
        start(3.0, "b"),
        at(1.0, "restore", "b", step=1, secs=1.0),
        at(2.0, "end", "b"),
        steps(9.0, 5, 9, 4.0),
    )
    assert (report.wall_secs, report.onlookers, report.sessions) == (9.0, 1, 1)
    assert report.restore_secs == 0.0


def test_an_empty_journal_is_a_run_of_no_time() -> None:
    report = report_of()
    assert (report.wall_secs, report.ettr, report.mtbf_secs, report.last_step) == (
        0,
        None,
        None,
        None,
    )
    assert account(Journal((at(1.0, "end", "lost"),), 2)).skipped_lines == 3


@given(st.lists(records(), max_size=30), st.integers(0, 3))
def test_any_records_add_up(found: list[Record], names: int) -> None:
    """Whatever a damaged or forged journal says: nothing negative, and the sum is the wall time."""
    few = [Record("abcd"[int(r.session[0], 16) % (names + 1)], r.t, r.kind, r.facts) for r in found]
    report_of(*few)


def test_the_json_has_its_documented_form() -> None:
    report = report_of(*KILLED_AND_BACK)
    found = json.loads(report.to_json())
    assert found["format"] == 1
    assert sorted(found) == [
        "began", "bytes_per_sec", "choices", "ettr", "failures", "format", "job", "journal",
        "mtbf_secs", "restarts", "saves", "secs", "sessions", "spreads", "stall_share", "steps",
        "wall_secs",
    ]  # fmt: skip
    assert found["secs"] == {
        "training": 30.0, "lost": 20.0, "stall": 1.0, "restore": 4.0, "down": 60.0, "other": 17.0,
        "waited": 0.25,
    }  # fmt: skip
    assert found["restarts"][0]["back_secs"] == 72.0
    assert found["choices"] == [{"at": 131.0, "interval_secs": 12.5, "why": "few failures"}]
