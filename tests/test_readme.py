"""Every Python block of a page runs, in order, as one program in an empty directory."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxckpt
from jaxckpt.format import limits

ROOT = Path(__file__).resolve().parent.parent


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def program(page: str) -> str:
    """The Python blocks, each on the lines that it has in the page, so that errors name them."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    kept: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("```"):
            inside = line == "```python"
            kept.append("")
        else:
            kept.append(line if inside else "")
    return "\n".join(kept) + "\n"


@pytest.mark.parametrize(("page", "least_blocks"), [("README.md", 8), ("docs/architecture.md", 1)])
def test_python_blocks_run(page: str, least_blocks: int, tmp_path: Path) -> None:
    assert len(blocks("python", page)) >= least_blocks
    source = program(page)
    script = tmp_path / "page.py"
    script.write_text(source, encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=work,
        # No more: XLA's CPU collectives lock up where many devices share few cores and nobody waits
        # for a step.
        env=kept | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_first_two_commands() -> None:
    """A newcomer's first two commands; `.ci/run` runs the second one word for word."""
    venv = "python3 -m venv .venv && .venv/bin/pip install -q -e"
    assert blocks("sh")[:2] == [
        f"{venv} '.[demo]' && .venv/bin/jaxckpt demo\n",
        f"{venv} '.[test]' && .venv/bin/pytest -q -n 2\n",
    ]


def test_tables_are_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in jaxckpt.__all__:
        if name.endswith(("Error", "Warning")):
            assert f"`{name}`" in text or f"`jaxckpt.{name}`" in text, name
    for name in jaxckpt.Options.__dataclass_fields__:
        assert f"| `{name}` |" in text, name
    doors = {jaxckpt.Checkpointer: ["directory", "options", "world"]}
    doors[jaxckpt.Checkpointer.save] = ["self", "step", "state"]
    for door, plain in doors.items():
        for name in inspect.signature(door).parameters:
            assert name in plain or re.search(rf"^\|.*`{name}`.*\|", text, re.MULTILINE), name


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/architecture.md",
        "docs/decisions.md",
        "jaxckpt/format/README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in link and not link.startswith("docs/benchmarks/"):
            assert (here / link).exists(), link


def test_limits_of_the_format_are_stated() -> None:
    """The table in the specification has each limit of the code, with its value."""
    text = (ROOT / "jaxckpt/format/README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(MAX_[A-Z_]+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert {name: _number(value) for name, value in rows.items()} == {
        name: value for name, value in vars(limits).items() if name.startswith("MAX_")
    }


def _number(text: str) -> int:
    power = re.fullmatch(r"2\^(\d+)", text)
    if power:
        return 1 << int(power[1])
    digits, _, unit = text.replace(",", "").partition(" ")
    return int(digits) << {"": 0, "MiB": 20, "GiB": 30}[unit]
