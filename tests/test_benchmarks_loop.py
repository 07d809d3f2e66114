"""The benchmark of a loop, at a tiny size; no time that it measures decides anything here."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import loop_stall, throttle
from benchmarks.bars import Bar
from benchmarks.loop_memory import MIB, LoopMemory
from benchmarks.loop_process import MEMORY, STALL, TRAINING, run_part
from benchmarks.loop_results import (
    CALL,
    ENDED,
    PAID,
    STAGED,
    LoopResults,
    bars,
    from_parts,
    write_json,
)
from benchmarks.loop_savers import (
    COPY,
    EAGER,
    LAZY,
    NONE,
    ORBAX,
    ORBAX_FREE,
    TORCH,
    TORCHES,
    VIEWS,
    Counts,
)
from benchmarks.loop_stall import (
    DONATED,
    HABITS,
    KEPT,
    LARGE,
    MANY,
    SMALL,
    Stall,
    cases,
    measure_stalls,
)
from benchmarks.loop_tables import write_markdown
from benchmarks.loop_training import Loop, Training
from benchmarks.machine import Machine
from benchmarks.measure import WARM_UP
from jaxckpt.donating import Donations

MACHINE = Machine("day", "none", "cpu", 2, 1.0, "kernel", "disk", [0.0], "3", {}, "commit")


def test_stalls_of_every_case(tmp_path):
    said = []
    arguments = {"nbytes": 2e6, "leaves": 6, "rounds": 1}
    found = run_part(STALL, arguments, str(tmp_path), said.append)
    results = from_parts(MACHINE, found, None, None)
    assert results.states() == [LARGE, *MANY]
    assert {COPY, EAGER, LAZY, ORBAX} <= set(results.cases(LARGE, DONATED))
    for habit in HABITS:
        for state in (LARGE, *MANY):
            found = set(results.cases(state, habit))
            assert {NONE, EAGER, ORBAX} <= found
            assert set(cases(state, habit)) - found <= set(TORCHES)  # it may not be installed
    counts = [len(results.cases(state, habit)) for state in (LARGE, *MANY) for habit in HABITS]
    assert len(said) == len(results.stalls) == 2 * sum(counts)
    for one in results.stalls:
        assert 0 < one.call <= one.staged <= one.stepped <= one.ended
    assert not list(tmp_path.iterdir())


def test_jaxckpt_sees_one_habit_alone(tmp_path, monkeypatch):
    viewed, habits = [], []
    views_serve = Donations.views_serve

    def look(donations: Donations) -> bool:
        viewed.append(views_serve(donations))
        return viewed[-1]

    def say(line: str) -> None:
        _state, habit, case, *_ = line.split()
        habits.extend([habit] if case == VIEWS else [])

    monkeypatch.setattr(Donations, "views_serve", look)
    monkeypatch.setattr(loop_stall, "_CASES", {LARGE: (NONE, VIEWS)})
    monkeypatch.setattr(loop_stall, "_QUIET_SECS", 0.0)
    measure_stalls(str(tmp_path), 2e6, 6, 2, say)
    # The save of the warm-up knows nothing of the loop yet.
    donated, kept = [(DONATED, False)] * 3, [(KEPT, False), (KEPT, True), (KEPT, True)]
    assert list(zip(habits, viewed, strict=True)) == donated + kept


def test_every_save_of_the_loop_is_accounted_for(tmp_path):
    sizes = {"nbytes": 1e5, "step_secs": 1e-4, "write_steps": 2, "secs": 0.0, "rounds": 1}
    found = run_part(TRAINING, sizes, str(tmp_path), lambda _: None)
    results = from_parts(MACHINE, None, found, None)
    assert results.training is not None
    # Other notes are of peers that are not installed.
    unlimited = any("whose rate nobody limits" in note for note in results.training.notes)
    assert (results.training.rate is None) == unlimited == bool(throttle.why_not())
    for case in (EAGER, LAZY):
        (loop,) = results.loops(case)
        assert loop.counts is not None
        assert loop.counts.durable + loop.counts.dropped == loop.saves
        assert loop.counts.waited_secs is not None
    (loop,) = results.loops(ORBAX)
    assert loop.counts == Counts(loop.saves, 0, None)
    (loop,) = results.loops(ORBAX_FREE)
    assert loop.counts is not None
    assert 0 < loop.counts.durable <= loop.saves
    (loop,) = results.loops(NONE)
    assert loop.counts is None
    assert not list(tmp_path.iterdir())


def test_memory_of_a_loop(tmp_path):
    found = LoopMemory(**run_part(MEMORY, {"nbytes": 1e6, "saves": 20}, str(tmp_path), print))
    assert found.saves == 20
    assert 0 <= found.dropped < 20
    assert 0 < found.peak <= found.budget


def test_a_part_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'leaf'"):
        run_part(MEMORY, {"leaf": 1}, str(tmp_path), print)


@pytest.mark.skipif(bool(throttle.why_not()), reason=throttle.why_not())
def test_the_limited_file_system_leaves_nothing_behind(tmp_path):
    with throttle.throttled(str(tmp_path), 32 << 20) as storage:
        storage.set_rate(1_234_567)
        words = throttle.CONTROL.read_text().split()  # others may limit devices of their own
        (limited,) = [d for d, r in zip(words[::2], words[1::2], strict=True) if r == "1234567"]
        with open(f"{storage.folder}/file", "w") as file:
            file.write("some bytes")
        assert len(storage.folder) < len(str(tmp_path)) + 20
    assert limited not in throttle.CONTROL.read_text().split()
    assert [one.name for one in tmp_path.iterdir()] == ["mounted"]
    assert not list((tmp_path / "mounted").iterdir())


def made_up() -> LoopResults:
    """Every figure at its bar, or a little better."""
    calls = {NONE: 0.0, COPY: 0.1, EAGER: 0.13, LAZY: 0.01, ORBAX: 1.95, TORCH: 0.5}
    stalls = [
        Stall(state, 10**9, habit, case, number, call, call + 0.1, call + 0.25, 2.0)
        for state in (LARGE, SMALL)
        for habit in HABITS
        for case, call in calls.items()
        for number in (WARM_UP, 0, 1)
    ]
    # What happened before the memory was warm counts nowhere.
    stalls = [dataclasses.replace(s, call=9.0) if s.round == WARM_UP else s for s in stalls]
    paces = {NONE: 10.0, EAGER: 10.5, LAZY: 10.0, ORBAX: 30.0}
    loops = [
        Loop(case, number, 10, secs, 0.5, 12, None if case == NONE else Counts(6, 6, 0.012))
        for case, secs in paces.items()
        for number in range(2)
    ]
    training = Training(10**8, 0.5, 1e8, (1, 2), loops, {}, [])
    memory = LoopMemory(10**7, 192 * MIB, 1000, 800, 192 * MIB, 100, 105)
    return LoopResults(MACHINE, stalls, training, memory, {"name": "settings"}, ["a note"])


def test_bars_and_files(tmp_path):
    results = made_up()
    found = {bar.what: bar for bar in bars(results)}
    assert all(bar.met for bar in found.values())
    for habit in HABITS:
        stall = f"jaxckpt, {LARGE}, {habit}: stall, against a plain copy"
        assert found[stall] == Bar(stall, "at most 1.3x", "1.30x", met=True)
    assert f"jaxckpt, {LARGE}, {KEPT}: stall, against the best of orbax async" in found
    assert (
        f"jaxckpt, {LARGE}, {DONATED}: stall and the step after it, against the best of orbax async"
        in (found)
    )
    many = f"jaxckpt, {SMALL}, {KEPT}: stall, against orbax async"
    assert found[many] == Bar(many, "at most 1/15", "1/15.0", met=True)
    loop = "loop: throughput of jaxckpt against no checkpoints"
    assert found[loop] == Bar(loop, "at least 0.95x", "0.952x", met=True)
    paid = results.stall(LARGE, DONATED, EAGER, PAID)
    staged = results.stall(LARGE, DONATED, EAGER, STAGED)
    assert paid is not None
    assert staged is not None
    assert paid.median == pytest.approx(0.13)
    assert staged.median == pytest.approx(0.23)
    assert results.stall(LARGE, KEPT, "other", ENDED) is None
    write_markdown(results, str(tmp_path / "loop.md"))
    text = (tmp_path / "loop.md").read_text()
    assert "MISSED" not in text
    assert "a note" in text
    write_json(results, str(tmp_path / "loop.json"))
    content = json.loads((tmp_path / "loop.json").read_text())
    assert len(content["stalls"]) == len(results.stalls)
    assert from_parts(
        MACHINE,
        {"stalls": content["stalls"], "settings": {}, "notes": []},
        content["training"],
        content["memory"],
    ) == dataclasses.replace(results, settings={}, notes=[])


def test_a_bar_compares_within_one_habit():
    results = made_up()
    slow = [dataclasses.replace(s, call=s.call * 1.2) if (s.case, s.habit) == (EAGER, DONATED) else s
            for s in results.stalls]  # fmt: skip
    worse = dataclasses.replace(results, stalls=slow)
    missed = [bar.what for bar in bars(worse) if not bar.met]
    assert missed == [f"jaxckpt, {LARGE}, {DONATED}: stall, against a plain copy"]
    kept, donated = (worse.stall(LARGE, habit, EAGER, CALL) for habit in (KEPT, DONATED))
    assert kept is not None
    assert donated is not None
    assert (kept.median, donated.median) == pytest.approx((0.13, 0.156))


def test_bars_that_are_missed():
    results = made_up()
    slow = [dataclasses.replace(s, call=s.call * 1.2) if s.case == EAGER else s
            for s in results.stalls]  # fmt: skip
    assert results.training is not None
    waiting = [dataclasses.replace(loop, counts=loop.counts and Counts(6, 6, 0.1), secs=11.0)
               if loop.case != NONE else loop for loop in results.training.loops]  # fmt: skip
    assert results.memory is not None
    worse = dataclasses.replace(
        results,
        stalls=slow,
        training=dataclasses.replace(results.training, loops=waiting),
        memory=dataclasses.replace(results.memory, peak=193 * MIB, late=106),
    )
    missed = {bar.what for bar in bars(worse) if not bar.met}
    assert f"jaxckpt, {LARGE}, {KEPT}: stall, against a plain copy" in missed
    assert f"jaxckpt, {SMALL}, {KEPT}: stall, against orbax async" in missed
    assert "loop: throughput of jaxckpt, lazy against no checkpoints" in missed
    assert "most memory held in 1,000 saves" in missed
    assert "resident memory after 1,000 saves against a tenth of them" in missed
    assert any("waits for room" in what for what in missed)
    assert f"{LARGE}: call of a lazy save" not in missed
