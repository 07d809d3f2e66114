"""The notebook and its text are one, and it runs from top to bottom, twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

COLAB = Path(__file__).resolve().parent.parent / "colab"
NOTEBOOKS = sorted(path.stem for path in COLAB.glob("*.py"))


def cells_of(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_the_text_without_outputs(name: str) -> None:
    stored = nbformat.read(COLAB / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    text = jupytext.read(COLAB / f"{name}.py")
    command = f"jupytext --update --to ipynb colab/{name}.py"
    assert cells_of(stored) == cells_of(text), f"run: {command}"
    for cell in stored.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert set(stored.metadata) <= {"jupytext", "kernelspec"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_twice_in_one_kernel(name: str, tmp_path: Path) -> None:
    """Jupyter's kernel has a running event loop, and the second pass finds jax started."""
    notebook = jupytext.read(COLAB / f"{name}.py")
    once = len(notebook.cells)
    again = [nbformat.from_dict(dict(cell, id=f"again-{cell.id}")) for cell in notebook.cells]
    notebook.cells += again
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    client.execute(env=kept | {"JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path)})
    assert printed(notebook.cells[:once]) == printed(notebook.cells[once:])
    assert list(tmp_path.iterdir()) == []


def printed(cells: list[Any]) -> list[str]:
    """What the cells printed, without paths that differ from run to run."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    lines = "".join(o.text for o in outputs if o.get("name") == "stdout").splitlines()
    assert any("after step 60" in line for line in lines)
    return [line for line in lines if "beginning" in line or "interrupted at" in line]
