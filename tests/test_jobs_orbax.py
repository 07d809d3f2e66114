"""Real jobs, both directions with plain orbax, which runs where jaxckpt can not be imported."""

from __future__ import annotations

from pathlib import Path

from jobs import run_job

SAVED = {"mesh": [[2, 2], "ab", 1], "specs": [["a"], [], ["b", "a"], [["a", "b"]]]}


def test_plain_orbax_restores_what_two_processes_saved(tmp_path: Path) -> None:
    run_job("orbax.write", 2, directory=tmp_path, seed=3, **SAVED)
    run_job("plain.restore", 2, directory=tmp_path, seed=3, mesh=[[4], "x"], specs=[["x"], []])
    run_job(
        "plain.restore", 1, devices=3, directory=tmp_path, seed=3, mesh=[[2], "x"], specs=[["x"]]
    )


def test_two_processes_restore_what_plain_orbax_wrote_in_a_job(tmp_path: Path) -> None:
    run_job("plain.write", 2, directory=tmp_path, seed=4, **SAVED)
    run_job("orbax.restore", 2, directory=tmp_path, seed=4, mesh=[[4], "x", 2], specs=[[], ["x"]])
