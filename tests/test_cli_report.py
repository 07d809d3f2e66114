"""`jaxckpt report`: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from test_reporting import record
from typer.testing import CliRunner

from jaxckpt.cli import app


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, args)], env={"COLUMNS": "100"})


def test_the_table_and_the_json(tmp_path: Path) -> None:
    record(tmp_path, steps=7)
    shown = run(tmp_path)
    assert shown.exit_code == 0
    assert "effective training time ratio (ETTR)" in shown.stdout
    assert "Training is at step 7" in shown.stdout
    found = json.loads(run(tmp_path, "--json").stdout)
    assert found["steps"] == {"counted": 7, "lost": 0, "last": 7}


def test_the_picture_and_the_events(tmp_path: Path) -> None:
    record(tmp_path)
    done = run(tmp_path, "--picture", tmp_path / "a.svg", "--tensorboard", tmp_path / "logs")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_errors_are_one_line_and_a_code(tmp_path: Path) -> None:
    missing = run(tmp_path / "no\x1b[2J[red]pe")
    assert missing.exit_code == 1
    assert missing.stdout == ""
    (line,) = missing.stderr.splitlines()
    assert line.startswith("jaxckpt report: there is no checkpoint at ")
    assert r"no\x1b[2J[red]pe" in line
    empty = run(tmp_path)
    assert empty.exit_code == 1
    assert "has no journal.jsonl" in empty.stderr
    record(tmp_path)
    wrong = run(tmp_path, "--picture", tmp_path / "a.gif")
    assert wrong.exit_code == 2
    assert "expected a name that ends in .png or .svg" in wrong.stderr
    nowhere = run(tmp_path, "--picture", tmp_path / "no" / "a.svg")
    assert nowhere.exit_code == 1
    assert "No such file" in nowhere.stderr


def test_it_starts_without_jax_and_what_draws(tmp_path: Path) -> None:
    record(tmp_path)
    code = (
        "import sys\n"
        "from jaxckpt.cli import app\n"
        "try:\n    app(['report', sys.argv[1]])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'jax', 'jaxlib', 'orbax', 'flax', 'tensorstore', 'matplotlib', 'tensorboard'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
