"""The demo, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import steps_in

from jaxckpt._version import __version__


def jaxckpt(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("jaxckpt")), *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, timeout=280
    )


def test_the_demo_is_killed_resumes_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    done = jaxckpt("demo", "--steps", "40", "--save-every", "10", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("step 25", "equal to the uninterrupted run, to the bit"):
        assert words in done.stdout
    # The save of step 20 may still be on its way to a slow disk when the process is killed.
    assert re.search("step [12]0, the newest", done.stdout), done.stdout
    assert "killed at step 25" in done.stderr
    run = tmp_path / "runs/digits/interrupted"
    assert steps_in(run) == ["20", "30", "40"]
    (tmp_path / "runs/digits/mine.txt").write_text("x")
    refused = jaxckpt("demo", "--steps", "20", "--save-every", "10", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Choose another one" in refused.stdout
    assert (tmp_path / "runs/digits/mine.txt").exists()


def test_version_help_and_nonsense(tmp_path: Path) -> None:
    assert jaxckpt("--version", cwd=tmp_path).stdout.strip() == __version__
    assert "demo" in jaxckpt("--help", cwd=tmp_path).stdout
    assert jaxckpt("demo", "--steps", "x", cwd=tmp_path).returncode == 2
    few = jaxckpt("demo", "--steps", "3", cwd=tmp_path)
    assert few.returncode == 1
    assert "at least twice save_every" in few.stdout.replace("\n", " ")
