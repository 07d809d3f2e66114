"""Imports go downwards only, and looking at files needs neither jax nor orbax."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import jaxckpt

ROOT = Path(jaxckpt.__file__).parent
# The layers of docs/architecture.md. A module imports from lower layers, or from its own folder.
LAYERS = [
    {"errors", "_types", "_version", "_calm"},
    {"_options"},
    {"format", "policy"},
    {"ettr"},
    {"layout"},
    {"io"},
    {"device", "dist"},
    {"opened", "foreign", "recording"},
    {"merging", "agreeing", "completing", "commit", "places", "items"},
    {"planning", "sharing", "reporting"},
    {"replanning", "staging", "reading_back", "in_flight", "retention", "donating"},
    {"saving", "restoring"},
    {"single"},
    {"deciding", "preemption"},
    {"step_place"},
    {"step_save"},
    {"saves", "run_reader"},
    {"schedule"},
    {"checkpointer", "handlers"},
    {"demo"},
    {"cli", "__init__"},
    {"testing"},
]
MAY_IMPORT_JAX = {
    "layout",
    "planning",
    "replanning",
    "device",
    "dist",
    "completing",
    "restoring",
    "demo",
    "testing",
}


def rooms() -> dict[str, list[tuple[Path, str, ast.stmt]]]:
    """All import statements by room."""
    found: dict[str, list[tuple[Path, str, ast.stmt]]] = {}
    for file in ROOT.rglob("*.py"):
        room = file.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [
                    f"{node.module}.{a.name}" if node.module == "jaxckpt" else str(node.module)
                    for a in node.names
                ]
            else:
                continue
            found.setdefault(room, []).extend((file, name, node) for name in names)
    return found


def layer_of(room: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if room in names)


def test_every_room_has_a_layer() -> None:
    assert set(rooms()) | {"_version"} <= set().union(*LAYERS)


def test_the_documentation_has_the_same_layers() -> None:
    page = (ROOT.parent / "docs/architecture.md").read_text(encoding="utf-8")
    rows = page.split("| modules | duty |")[1].split("\n\n")[0].splitlines()[2:]
    named = [set(re.findall(r"`(\w+)/?`", row.split("|")[1])) for row in rows]
    assert named == LAYERS


def test_imports_go_down() -> None:
    for room, imports in rooms().items():
        for file, name, _ in imports:
            if not name.startswith("jaxckpt."):
                continue
            other = name.split(".")[1]
            if room == "__init__" or other == room:
                continue
            allowed = layer_of(other) < layer_of(room)
            assert allowed, f"{file.relative_to(ROOT)} imports {name}"


def test_no_ring_inside_a_folder() -> None:
    edges: dict[str, set[str]] = {}
    for imports in rooms().values():
        for file, name, _ in imports:
            own = "jaxckpt." + ".".join(file.relative_to(ROOT).with_suffix("").parts)
            if name.startswith("jaxckpt.") and not own.endswith("__init__"):
                edges.setdefault(own, set()).add(name)
    done: set[str] = set()

    def visit(node: str, path: tuple[str, ...]) -> None:
        assert node not in path, f"a ring: {' -> '.join((*path, node))}"
        if node not in done:
            for other in edges.get(node, ()):
                visit(other, (*path, node))
            done.add(node)

    for node in edges:
        visit(node, ())


def test_who_may_import_what() -> None:
    for room, imports in rooms().items():
        for file, name, _ in imports:
            top = name.split(".")[0]
            if top in ("jax", "flax", "optax"):
                assert room in MAY_IMPORT_JAX, f"{file} imports {name}"
            if top == "orbax":
                assert room == "handlers", f"{file} imports {name}"
            if top == "tensorstore":
                assert room == "foreign", f"{file} imports {name}"
            if room in ("format", "layout", "policy", "ettr"):
                assert top not in ("os", "time", "random", "threading", "secrets"), (
                    f"{file}: {name}"
                )
            if top in ("time", "random", "secrets"):
                assert file.name in ("world.py", "handlers.py", "memory_store.py", "train.py"), file


def test_looking_at_files_imports_neither_jax_nor_orbax() -> None:
    code = (
        "import sys, jaxckpt, jaxckpt.opened, jaxckpt.places, jaxckpt.io.local, jaxckpt.cli\n"
        "from jaxckpt.io.chunk_reader import ChunkReader\n"
        "heavy = {'jax', 'jaxlib', 'orbax', 'flax', 'tensorstore'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_is_there() -> None:
    for name in jaxckpt.__all__:
        assert getattr(jaxckpt, name) is not None
    assert dir(jaxckpt) == sorted(jaxckpt.__all__)
