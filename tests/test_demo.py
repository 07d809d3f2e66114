"""The demo, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import steps_in

from jaxckpt import report as report_of
from jaxckpt._version import __version__


def jaxckpt(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("jaxckpt")), *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, timeout=280
    )


def test_the_demo_is_killed_resumes_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    done = jaxckpt("demo", "--steps", "40", "--save-every", "10", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("step 25", "equal to the uninterrupted run, to the bit", "(ETTR)"):
        assert words in done.stdout
    # The save of step 20 may still be on its way to a slow disk when the process is killed.
    assert re.search("step [12]0, the newest", done.stdout), done.stdout
    assert "killed at step 25" in done.stderr
    run = tmp_path / "runs/digits/interrupted"
    kept = steps_in(run)  # the newest two, and the one with the least loss
    assert kept[-2:] == ["30", "40"]
    assert len(kept) <= 3
    the_journal_tells_the_story(run)
    picture = tmp_path / "runs/digits/report.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "runs/digits/mine.txt").write_text("x")
    refused = jaxckpt("demo", "--steps", "20", "--save-every", "10", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Choose another one" in refused.stdout
    assert (tmp_path / "runs/digits/mine.txt").exists()


def the_journal_tells_the_story(run: Path) -> None:
    """Training, a stall at each save, one failure, and the steps that it cost."""
    report = report_of(run)
    for kind in ("training", "lost", "stall", "restore", "down"):
        assert report.secs_of(kind) > 0, kind
    (restart,) = report.restarts
    assert not restart.clean
    assert restart.step in (10, 20)
    assert restart.lost_steps == 25 - restart.step
    assert report.last_step == 40
    assert report.stall.count >= 4


def test_version_help_and_nonsense(tmp_path: Path) -> None:
    assert jaxckpt("--version", cwd=tmp_path).stdout.strip() == __version__
    assert "demo" in jaxckpt("--help", cwd=tmp_path).stdout
    assert jaxckpt("demo", "--steps", "x", cwd=tmp_path).returncode == 2
    few = jaxckpt("demo", "--steps", "3", cwd=tmp_path)
    assert few.returncode == 1
    assert "at least twice save_every" in few.stdout.replace("\n", " ")
