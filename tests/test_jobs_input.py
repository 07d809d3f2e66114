"""Real jobs whose processes do not ask for the same: a clear error everywhere, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs import Job, run_job

DISAGREE = "ProcessesDisagreeError"
SAVES: dict[str, tuple[str, str]] = {
    "a leaf more": (DISAGREE, "'more' is on process {odd} and not on process 0"),
    "a leaf less": (DISAGREE, "'more' is on process 0 and not on process {odd}"),
    "shape": (DISAGREE, "'w' has float32[64, 128] on process 0, float32[64, 256] on process {odd}"),
    "dtype": (DISAGREE, "'w' has float32[64, 128] on process 0, int32[64, 128] on process {odd}"),
    "spec": (DISAGREE, "'w' has sharding"),
    "mesh": (DISAGREE, "'w' has sharding"),
    "host value": (DISAGREE, "make it the same everywhere"),
    "float": (DISAGREE, "'lr' has value 0.5 (bits 3fe0000000000000) on process 0, 0.25"),
    "text": (DISAGREE, "'n' has value"),
    "kind": (DISAGREE, "'n' has a Python str on process 0, a Python int on process {odd}"),
    "own device": (DISAGREE, "'w' has sharding"),
    "devices of one process": (DISAGREE, "'w' has value"),
    "items": (DISAGREE, "position"),
    "options": (DISAGREE, "'(the options)' has checksum=True"),
    "no leaf": ("UnsupportedLeafError PeerFailedError", "object"),
    "step": (DISAGREE, "step 3"),
    "a step that is there": ("StepExistsError", "exists and was left as it is"),
    "save and restore": (DISAGREE, "same calls in the same order"),
    "no such step": ("StepNotFoundError", "has no step 7"),
    "other step to restore": (DISAGREE, "step 7"),
    "directory": (DISAGREE, "same calls in the same order"),
    "path": (DISAGREE, "same calls in the same order"),
    "path to restore": (DISAGREE, "same calls in the same order"),
    "nothing to restore for one": ("CheckpointNotFoundError PeerFailedError", "no such file"),
}
RESTORES: dict[str, tuple[str, str]] = {
    "sharding": (DISAGREE, "'w' has sharding"),
    "kind": (DISAGREE, "'w' has"),
    "tree": ("TreeMismatchError PeerFailedError", "b"),
    "shape": ("TreeMismatchError PeerFailedError", "w"),
    "devices of one process": (DISAGREE, "'w' has sharding"),
    "way": (DISAGREE, "'(the options)' has complete='allgather'"),
}


def check(expected: tuple[str, str], found: list[dict[str, Any]], name: str) -> None:
    classes, text = expected
    for one in found:
        assert one.get("error") in classes.split(), (name, one)
        assert one["secs"] < 10, (name, one)
    assert {one["error"] for one in found} == set(classes.split()), (name, found)
    assert all(text.format(odd=len(found) - 1) in one["text"] for one in found), (name, found)


def test_saves_that_differ_are_refused_by_all(tmp_path: Path) -> None:
    found = run_job("bad_input.different_saves", 4, directory=tmp_path / "run")
    for name, expected in SAVES.items():
        check(expected, [f[name] for f in found], name)
    assert found[0]["names"] == ["1", "2"]
    hidden = [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert hidden == []


def test_restores_that_differ_are_refused_by_all(tmp_path: Path) -> None:
    found = run_job("bad_input.different_restores", 2, directory=tmp_path)
    for name in found[0]:
        check(RESTORES[name.partition(",")[0]], [f[name] for f in found], name)


def test_a_process_index_that_is_there_twice(tmp_path: Path) -> None:
    found = run_job("bad_input.one_index_twice", 2, directory=tmp_path)
    for index in "01":
        expected = DISAGREE, f"process index {index} is there twice"
        check(expected, [f[index] for f in found], index)


def test_a_directory_that_is_not_shared(tmp_path: Path) -> None:
    found = run_job("directories.not_shared", 2, directory=tmp_path)
    for name in ("opening", "saving", "restoring", "going on", "saving again"):
        check(("NotSharedError", "process 1 does not see"), [f[name] for f in found], name)
    assert found[0]["left"] == []
    assert found[0]["names"] == ["1", "2"]


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 6
    jobs = [
        Job("directories.race", 2, directory=run, seed=seed, steps=steps) for seed in (100, 200)
    ]
    both = [[o.result for o in job.wait(60)] for job in jobs]
    for processes in both:
        assert processes[0] == processes[1]
    first, second = both[0][0], both[1][0]
    assert all({a, b} == {"saved", "StepExistsError"} for a, b in zip(first, second, strict=True))
    seeds = [100 if a == "saved" else 200 for a in first]
    run_job("directories.who_won", 2, directory=run, seeds=seeds)


def test_a_damaged_step_is_refused_and_passed_over_by_all(tmp_path: Path) -> None:
    found = run_job("directories.damaged", 2, directory=tmp_path)
    for name in found[0]:
        for one in zip(*(f[name] for f in found), strict=True):
            check(("DamagedCheckpointError", "damaged checkpoint"), list(one), name)
