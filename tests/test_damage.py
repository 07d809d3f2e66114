"""Flipped bits, cut files, lying and hostile files: an error that names the thing, never data."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import zstandard
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Checkpointer, Options
from jaxckpt.errors import DamagedCheckpointError, JaxckptError
from jaxckpt.format.frame import MANIFEST_MAGIC
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore
from jaxckpt.testing.memory_store import MemoryStore

DATA = "ocdbt.process_0/d/data-00000"
INDEX = "ocdbt.process_0/d/index"


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    rng = np.random.default_rng(0)
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    return {
        "big": jax.device_put(rng.random((256, 256), np.float32), sharding),
        "middle": rng.random(2000),
        "small": np.arange(20),
        "text": "hello",
        "n": 5,
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> Path:
    path = tmp_path_factory.mktemp("saved") / "c"
    jaxckpt.save(path, state)
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "c"))


def edit(file: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


def flip(offset: int, bit: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[offset] ^= 1 << bit

    return change


def assert_refused_or_same(path: Path, state: dict[str, Any], what: str) -> bool:
    """True when refused; a flip in padding or in a file for other readers may change nothing."""
    try:
        found = jaxckpt.restore(path, state)
    except JaxckptError:
        return True
    for name, value in state.items():
        assert np.array_equal(found[name], value), f"{what}: wrong data in {name}, no error"
    return False


def test_every_bit_of_small_files_and_many_of_the_data(copy: Path, state: dict[str, Any]) -> None:
    chance = random.Random(0)
    data_bits = unseen = 0
    for name in (DATA, INDEX, "manifest.ocdbt", "jaxckpt.json"):
        file = copy / name
        original = file.read_bytes()
        offsets = range(len(original))
        picked = chance.sample(list(offsets), min(250, len(original)))
        for offset in picked:
            edit(file, flip(offset, chance.randrange(8)))
            refused = assert_refused_or_same(copy, state, f"{name} at {offset}")
            file.write_bytes(original)
            if name == DATA:
                data_bits += 1
                unseen += not refused
            else:
                assert refused, f"a flip in {name} at {offset} was not seen"
    stored = 256 * 256 * 4 + 2000 * 8
    padding = 1 - stored / (copy / DATA).stat().st_size
    assert unseen <= data_bits * (padding + 0.1)


def test_a_damaged_chunk_is_named(copy: Path, state: dict[str, Any]) -> None:
    edit(copy / DATA, flip(1000, 3))
    with pytest.raises(DamagedCheckpointError) as caught:
        jaxckpt.restore(copy, state)
    error = caught.value
    assert error.leaf == "big"
    assert error.path.endswith(DATA)
    assert error.offset == 0
    for part in ("big", DATA, "offset 0", "crc32c", "Restore another step"):
        assert part in str(error)


@pytest.mark.parametrize("name", [DATA, INDEX, "manifest.ocdbt", "jaxckpt.json"])
@pytest.mark.parametrize("how", ["truncated", "longer", "empty", "missing", "zeroed"])
def test_a_file_of_another_size_is_named(
    copy: Path, state: dict[str, Any], name: str, how: str
) -> None:
    file = copy / name
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        changed = {
            "truncated": data[:-1],
            "longer": data + b"x",
            "empty": b"",
            "zeroed": bytes(len(data)),
        }
        file.write_bytes(changed[how])
    if name == "jaxckpt.json" and how == "missing":
        # Without our sidecar it is what any orbax checkpoint is, and still whole.
        found = jaxckpt.restore(copy)
        assert np.array_equal(found["big"], state["big"])
        return
    with pytest.raises(DamagedCheckpointError, match=name.rpartition("/")[2]):
        jaxckpt.restore(copy, state)


def test_a_chunk_that_lies_elsewhere_is_refused(copy: Path, state: dict[str, Any]) -> None:
    """Two chunks of one size swapped in the data file: each has a valid checksum of its own."""
    chunk = 64 * 128 * 4 + 4
    step = -(-chunk // 64) * 64

    def swap(data: bytearray) -> None:
        data[:chunk], data[step : step + chunk] = data[step : step + chunk], data[:chunk]

    edit(copy / DATA, swap)
    with pytest.raises(DamagedCheckpointError, match="another one than belongs there"):
        jaxckpt.restore(copy, state)


def rewrite_sidecar(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the sidecar and makes its checksum right again, as a forger would."""
    file = path / "jaxckpt.json"
    _, body, _ = file.read_bytes().split(b"\n")
    doc = json.loads(body)
    change(doc)
    body = json.dumps(doc).encode()
    head = {"jaxckpt": 1, "bytes": len(body), "crc32c": crc32c.crc32c(body)}
    file.write_bytes(json.dumps(head).encode() + b"\n" + body + b"\n")


def leaf_named(doc: dict[str, Any], dtype: str) -> list[Any]:
    return next(entry for entry in doc["leaves"] if len(entry) > 2 and entry[1] == dtype)


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a shape of 2^60": lambda d: leaf_named(d, "float32").__setitem__(2, [2**60, 256]),
    "a larger shape": lambda d: leaf_named(d, "float32").__setitem__(2, [512, 256]),
    "a negative shape": lambda d: leaf_named(d, "float32").__setitem__(2, [-1, 256]),
    "a chunk of 0": lambda d: leaf_named(d, "float32").__setitem__(3, [0, 128]),
    "a smaller chunk": lambda d: leaf_named(d, "float32").__setitem__(3, [32, 128]),
    "more axes": lambda d: leaf_named(d, "float32").__setitem__(2, [1] * 99),
    "another dtype": lambda d: leaf_named(d, "float32").__setitem__(1, "float64"),
    "an object dtype": lambda d: leaf_named(d, "float32").__setitem__(1, "object"),
    "a file outside": lambda d: d["files"].__setitem__("../../x", [1, None]),
    "an absolute file": lambda d: d["files"].__setitem__("/etc/passwd", [1, None]),
    "a leaf twice": lambda d: d["tree"][3].__setitem__(0, 1),
    "2^30 chunks": lambda d: leaf_named(d, "float32").__setitem__(slice(2, 5), [[2**30], [1], ""]),
    "one chunk of 2^44": lambda d: leaf_named(d, "float32").__setitem__(
        slice(2, 5), [[2**44], [2**44], "AAAAAA=="]
    ),
    "no checksums": lambda d: leaf_named(d, "float32").__setitem__(4, ""),
    "a sharding that is not there": lambda d: leaf_named(d, "float32").__setitem__(7, 5),
    "a lone surrogate": lambda d: d["tree"][2].__setitem__(0, ["key", "\ud800"]),
    "an int key with a space": lambda d: d["tree"][2].__setitem__(0, ["int", " 1"]),
    "a scalar with axes": lambda d: leaf_named(d, "int64").__setitem__(0, "npscalar"),
    "keys of nobody": lambda d: leaf_named(d, "int64").__setitem__(
        slice(0, 9), ["prng", "int64", [20], [20], leaf_named(d, "int64")[4], 1, "foo", -1]
    ),
    "a leaf named twice": lambda d: d["tree"][3].append(0) or d["tree"][2].append(["key", "zz"]),
    "a leaf missing": lambda d: d["leaves"].pop(),
    "no leaves": lambda d: d.pop("leaves"),
    "leaves no list": lambda d: d.__setitem__("leaves", 3),
    "an unknown kind": lambda d: d["leaves"][0].__setitem__(0, "pickle"),
    "a text as int": lambda d: [e.__setitem__(1, "x") for e in d["leaves"] if e[0] == "int"],
    "a huge int text": lambda d: [
        e.__setitem__(1, "9" * 5000) for e in d["leaves"] if e[0] == "int"
    ],
    "unknown compression": lambda d: d.__setitem__("compression", "lz4"),
    "a deep tree": lambda d: d.__setitem__("tree", nested(100)),
    "a float size": lambda d: d["files"].__setitem__(DATA, [1.5, None]),
}


def nested(depth: int) -> Any:
    node: Any = 0
    for _ in range(depth):
        node = ["list", "", None, [node]]
    return node


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_sidecar_is_refused(copy: Path, name: str) -> None:
    rewrite_sidecar(copy, HOSTILE[name])
    with pytest.raises(DamagedCheckpointError):
        jaxckpt.restore(copy)


def test_a_newer_format_is_refused_by_its_version(copy: Path) -> None:
    (copy / "jaxckpt.json").write_bytes(b'{"jaxckpt": 2, "bytes": 0}\nnobody knows\n')
    with pytest.raises(
        jaxckpt.FormatVersionError, match="version 2; this jaxckpt reads up to 1"
    ) as caught:
        jaxckpt.restore(copy)
    assert (caught.value.found, caught.value.known) == (2, 1)
    assert "pip install -U jaxckpt" in str(caught.value)


@pytest.mark.parametrize(
    "name", [DATA, INDEX, "ocdbt.process_0/d", "ocdbt.process_0", "manifest.ocdbt"]
)
def test_a_link_out_of_the_checkpoint_is_not_followed(
    copy: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    (copy / name).rename(outside)
    (copy / name).symlink_to(outside)
    with pytest.raises(JaxckptError):
        jaxckpt.restore(copy)


def test_a_fifo_is_not_read(copy: Path) -> None:
    import os

    size = (copy / DATA).stat().st_size
    (copy / DATA).unlink()
    os.mkfifo(copy / DATA)
    assert size
    with pytest.raises(JaxckptError):
        jaxckpt.restore(copy)


def plain_checkpoint(path: Path, **options: Any) -> Path:
    handler = ocp.PyTreeCheckpointHandler(**options)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, {"w": np.arange(100.0)})
    return path


@pytest.mark.parametrize("zarr3", [True, False])
def test_a_shape_bomb_in_orbax_files_is_refused(tmp_path: Path, zarr3: bool) -> None:
    path = plain_checkpoint(tmp_path / "c", use_ocdbt=False, use_zarr3=zarr3)
    file = path / "w" / ("zarr.json" if zarr3 else ".zarray")
    doc = json.loads(file.read_text())
    doc["shape"] = [2**40]
    file.write_text(json.dumps(doc))
    with pytest.raises(DamagedCheckpointError, match="claims"):
        jaxckpt.restore(path)


def test_a_chunk_bomb_in_orbax_files_is_refused(tmp_path: Path) -> None:
    path = plain_checkpoint(tmp_path / "c", use_ocdbt=False, use_zarr3=True, use_compression=False)
    file = path / "w/zarr.json"
    doc = json.loads(file.read_text())
    doc["chunk_grid"]["configuration"]["chunk_shape"] = [2**34]
    doc["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    file.write_text(json.dumps(doc))
    with pytest.raises(DamagedCheckpointError, match="chunks claim"):
        jaxckpt.restore(path)


@pytest.mark.parametrize("zarr3", [True, False])
@pytest.mark.parametrize("depth", ["array", "chunk"])
def test_links_in_orbax_files_are_not_followed(tmp_path: Path, zarr3: bool, depth: str) -> None:
    path = plain_checkpoint(tmp_path / "c", use_ocdbt=False, use_zarr3=zarr3)
    inside = path / "w" if depth == "array" else path / ("w/c/0" if zarr3 else "w/0")
    outside = tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(DamagedCheckpointError, match="link"):
        jaxckpt.restore(path)


def test_names_that_leave_the_directory_in_orbax_metadata_are_refused(tmp_path: Path) -> None:
    path = plain_checkpoint(tmp_path / "c", use_ocdbt=False)
    text = (path / "_METADATA").read_text().replace('"key": "w"', '"key": "../outside"')
    (path / "_METADATA").write_text(text)
    with pytest.raises(DamagedCheckpointError, match="is refused"):
        jaxckpt.restore(path)


def test_a_zstd_bomb_in_an_orbax_manifest_is_refused(tmp_path: Path) -> None:
    path = plain_checkpoint(tmp_path / "c")
    body = zstandard.ZstdCompressor(19).compress(bytes(1 << 28))
    head = struct.pack(">I", MANIFEST_MAGIC) + struct.pack("<Q", 14 + len(body) + 4) + b"\x00\x01"
    framed = head + body
    (path / "manifest.ocdbt").write_bytes(framed + struct.pack("<I", crc32c.crc32c(framed)))
    with pytest.raises(DamagedCheckpointError, match="unpacks to"):
        jaxckpt.restore(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tree_metadata": 3}', '{"a":1,"a":2}', '{"x": NaN}', "\xff"]
)
def test_broken_orbax_metadata_is_refused(tmp_path: Path, text: str) -> None:
    path = plain_checkpoint(tmp_path / "c")
    (path / "_METADATA").write_text(text, encoding="latin-1")
    with pytest.raises(DamagedCheckpointError):
        jaxckpt.restore(path)


def test_a_missing_chunk_of_orbax_files_is_refused(tmp_path: Path) -> None:
    path = plain_checkpoint(tmp_path / "c", use_ocdbt=False)
    (path / "w" / "0").unlink()
    with pytest.raises(DamagedCheckpointError):
        jaxckpt.restore(path)


def test_a_damaged_newest_step_is_passed_over_loudly(tmp_path: Path, state: dict[str, Any]) -> None:
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {**state, "n": 1})
        ckpt.save(2, {**state, "n": 2})
        ckpt.wait()
        edit(tmp_path / "run/2/default" / DATA, flip(1000, 1))
        assert ckpt.steps() == [1, 2]
        with pytest.warns(jaxckpt.DamagedStepWarning, match="step 2"):
            found, step = ckpt.restore_or(state)
        assert (step, found["n"]) == (1, 1)
        with pytest.raises(DamagedCheckpointError):
            ckpt.restore(state)
        edit(tmp_path / "run/1/default" / DATA, flip(1000, 1))
        with pytest.warns(jaxckpt.DamagedStepWarning), pytest.raises(DamagedCheckpointError):
            ckpt.restore_or(state)


@pytest.mark.parametrize("name", [DATA, "jaxckpt.json", "manifest.ocdbt", "_METADATA"])
def test_a_step_that_is_not_whole_is_not_listed(
    tmp_path: Path, state: dict[str, Any], name: str
) -> None:
    run = tmp_path / "run"
    with jaxckpt.Checkpointer(run) as ckpt:
        ckpt.save(1, state)
        ckpt.save(2, state)
        ckpt.wait()
        (run / "3").mkdir()
        (run / "4.orbax-checkpoint-tmp").mkdir()
        (run / "007").mkdir()
        assert ckpt.steps() == [1, 2]
        file = run / "2/default" / name
        file.write_bytes(file.read_bytes()[:-1])
        assert ckpt.steps() == [1]
        assert ckpt.latest_step() == 1
        with pytest.warns(jaxckpt.DamagedStepWarning, match="step 2 of .* is damaged"):
            _, step = ckpt.restore_or(state)
        assert step == 1
        with pytest.warns(jaxckpt.DamagedStepWarning, match="step 2 of .* is damaged"):
            ckpt.restore(state)
        file = run / "1/default" / name
        file.write_bytes(b"")
        assert ckpt.steps() == []
        with pytest.warns(jaxckpt.DamagedStepWarning), pytest.raises(DamagedCheckpointError):
            ckpt.restore_or(state)  # never from 0 over a run whose steps are damaged


def test_steps_of_nothing_do_not_count_as_steps(tmp_path: Path, state: dict[str, Any]) -> None:
    """Retention must not take directories for steps that hold no state."""
    run = tmp_path / "run"
    with jaxckpt.Checkpointer(run, keep_last=2) as ckpt:
        ckpt.save(1, state)
        ckpt.save(2, state)
        ckpt.wait()
        for ghost, handlers in (
            (8, "{}"),
            (9, "null"),
            (10, '{"../1/default": "x"}'),
            (11, '{"a": "x"}'),
        ):
            (run / str(ghost)).mkdir()
            text = f'{{"item_handlers": {handlers}, "commit_timestamp_nsecs": 1}}'
            (run / str(ghost) / "_CHECKPOINT_METADATA").write_text(text)
        assert ckpt.steps() == [1, 2]
        ckpt.save(3, state)
        ckpt.wait()
        assert ckpt.steps() == [2, 3]
        with pytest.warns(jaxckpt.DamagedStepWarning):
            _, step = ckpt.restore_or(state)
        assert step == 3


def test_opening_runs_no_code_and_imports_nothing_by_name() -> None:
    """No pickle, eval, or import of a name that a file gives."""
    import ast

    root = Path(jaxckpt.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name not in {"eval", "exec", "literal_eval", "__import__"}, file
                if name == "import_module":
                    assert file.name == "__init__.py", file
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & set(names), file


def test_a_mesh_is_not_needed_to_look_at_numpy(mesh: Mesh, saved: Path) -> None:
    del mesh
    assert jaxckpt.restore(saved)["big"].shape == (256, 256)


def test_another_manifest_of_the_same_length_is_refused(tmp_path: Path) -> None:
    """It ends with its own CRC-32C, so a CRC-32C of all of it would be the same."""
    for name in ("a", "b"):
        jaxckpt.save(tmp_path / name, {"x": np.arange(10_000) + len(name)})
    one, other = (tmp_path / name / "manifest.ocdbt" for name in ("a", "b"))
    assert len(one.read_bytes()) == len(other.read_bytes())
    one.write_bytes(other.read_bytes())
    with pytest.raises(jaxckpt.DamagedCheckpointError, match="not the one that the sidecar names"):
        jaxckpt.restore(tmp_path / "a")


def test_no_older_step_goes_for_one_that_no_restore_could_open() -> None:
    """A disk that flips a bit: the values are whole, and nothing leads to them."""

    class Flipping(FaultyStore):
        def create(self, path: str, *, direct: bool) -> Any:
            writer = super().create(path, direct=direct)
            if "-tmp-2-" in path and path.endswith("default/manifest.ocdbt"):
                write = writer.write_at

                def flip(offset: int, data: Any) -> None:
                    wrong = bytearray(data)
                    wrong[len(wrong) // 2] ^= 1
                    write(offset, bytes(wrong))

                writer.write_at = flip  # pyright: ignore[reportAttributeAccessIssue]
            return writer

    options = Options(memory_budget_bytes=16 << 20)
    world = World(Flipping(MemoryStore()), Coordinator())
    with Checkpointer("/run", options=options, world=world, keep_last=1) as ckpt:
        ckpt.save(1, {"w": np.arange(100)})
        ckpt.wait()
        ckpt.save(2, {"w": np.arange(100)})
        with pytest.raises(DamagedCheckpointError, match=r"manifest\.ocdbt"):
            ckpt.wait()
        ckpt.restore({"w": np.zeros(100, int)}, step=1)
