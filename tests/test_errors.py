"""Bad input: one clear typed error that names the thing and the next step; nothing half-made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import steps_in
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import TreeMismatchError, UnsupportedLeafError


class Opaque:
    pass


BAD_LEAVES: list[tuple[str, Any, str, str]] = [
    ("an object", {"a": {"b": Opaque()}}, "a.b", "has type test_errors.Opaque"),
    ("a function", {"f": len}, "f", "builtin_function_or_method"),
    ("bytes", {"x": b"abc"}, "x", "has type builtins.bytes"),
    ("an object array", {"x": np.array([1, "a"], object)}, "x", "dtype object"),
    ("a string array", {"x": np.array(["a"])}, "x", "dtype <U1"),
    ("datetimes", {"x": np.array(["2020"], "M8[D]")}, "x", "dtype datetime64"),
    ("a structured array", {"x": np.zeros(2, [("a", "i4")])}, "x", "dtype"),
    ("a longdouble", {"x": np.longdouble(1)}, "x", "dtype"),
    ("a masked array", {"x": np.ma.masked_array([1, 2], [0, 1])}, "x", "masked"),
    ("an abstract leaf", {"x": jax.ShapeDtypeStruct((2,), jnp.float32)}, "x", "ShapeDtypeStruct"),
    ("a tuple key", {("a", 1): 1}, "('a', 1)", "type tuple"),
    ("a bool key", {True: 1}, "True", "type bool"),
    ("mixed keys", {1: 1, "a": 2}, "<root>", "can not be ordered"),
    ("one name twice", {"a": {"b": 1}, "a.b": 2}, "a.b", "same dotted name"),
    ("a lone surrogate", {"x": "\ud800"}, "x", "not valid Unicode"),
    ("a surrogate key", {"\ud800": 1}, "<root>", "not valid Unicode"),
    ("too many axes", {"x": np.zeros((1,) * 40)}, "x", "it has 40 axes"),
    ("a huge int", {"x": 1 << 20_000}, "x", "too many digits"),
]


@pytest.mark.parametrize(
    ("tree", "leaf", "reason"), [b[1:] for b in BAD_LEAVES], ids=[b[0] for b in BAD_LEAVES]
)
def test_a_leaf_that_can_not_be_saved_is_refused_before_any_byte(
    tmp_path: Path, tree: Any, leaf: str, reason: str
) -> None:
    with pytest.raises(UnsupportedLeafError) as caught:
        jaxckpt.save(tmp_path / "c", tree)
    assert caught.value.leaf == leaf
    assert f"leaf '{leaf}' can not be saved" in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).rstrip().endswith(".")
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt, pytest.raises(UnsupportedLeafError):
        ckpt.save(1, {"good": jnp.ones(3), "bad": tree})
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert steps_in(tmp_path / "run") == []


def test_a_donated_array_and_a_tracer_are_refused(tmp_path: Path) -> None:
    x = jnp.ones(1000)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    with pytest.raises(UnsupportedLeafError, match="donated"):
        jaxckpt.save(tmp_path / "c", {"x": x})
    with pytest.raises(UnsupportedLeafError, match="outside of jit"):
        jax.jit(lambda y: jaxckpt.save(tmp_path / "c", {"y": y}))(jnp.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(10):
        tree = {"k" * 10_000: tree}
    with pytest.raises(UnsupportedLeafError, match="Shorten the keys"):
        jaxckpt.save(tmp_path / "c", tree)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_is_too_deep(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(100):
        tree = [tree]
    with pytest.raises(UnsupportedLeafError, match="deeper than 64"):
        jaxckpt.save(tmp_path / "c", tree)


def test_all_mismatches_are_listed_at_once(tmp_path: Path, mesh: Mesh) -> None:
    del mesh
    pair = namedtuple("pair", "a b")  # noqa: PYI024
    saved = {
        "shape": jnp.ones((2, 3)), "dtype": jnp.ones(3, jnp.float32), "gone": jnp.ones(2), "text": "x",
        "key": jax.random.key(0), "none": None, "pair": pair(1, 2.0), "same": 1, "list": [1, 2, 3],
    }  # fmt: skip
    jaxckpt.save(tmp_path / "c", saved)
    target = {
        "shape": jnp.ones((3, 2)), "dtype": jnp.ones(3, jnp.bfloat16), "new": jnp.ones(4), "text": 4,
        "key": jax.random.key(0, impl="rbg"), "none": jnp.ones(2), "pair": pair(1, "2"), "same": 1,
        "list": [1, 2],
    }  # fmt: skip
    with pytest.raises(TreeMismatchError) as caught:
        jaxckpt.restore(tmp_path / "c", target)
    text = "\n".join(caught.value.mismatches)
    for line in (
        "shape: stored shape is [2, 3], the target has [3, 2]",
        "dtype: stored dtype is float32, the target has bfloat16",
        "gone: in the checkpoint (float64[2]), not in the target",
        "new: in the target, not in the checkpoint",
        "text: stored is a Python str, the target has a Python int",
        "key: stored is PRNG keys threefry2x32[], the target has PRNG keys rbg[]",
        "none: stored is None, the target has float64[2]",
        "pair.b: stored is a Python float, the target has a Python str",
        "list.2: in the checkpoint (a Python int), not in the target",
    ):
        assert line in text
        assert line in str(caught.value)
    assert len(caught.value.mismatches) == 9
    for word in ("cast=True", "allow_missing=True", "allow_extra=True"):
        assert word in str(caught.value)


def test_casting_and_other_trees_only_when_asked_for(tmp_path: Path, mesh: Mesh) -> None:
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    values = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    jaxckpt.save(tmp_path / "c", {"a": jax.device_put(values, sharding), "b": 1, "n": np.arange(3)})
    half = jax.device_put(values.astype(jnp.bfloat16), sharding)
    target = {"a": half, "new": "kept", "n": np.zeros(3, np.float64), "f": [], "b": 1.0}
    with pytest.raises(TreeMismatchError):
        jaxckpt.restore(tmp_path / "c", target)
    with pytest.raises(TreeMismatchError, match="new: in the target"):
        jaxckpt.restore(tmp_path / "c", target, cast=True)
    found = jaxckpt.restore(tmp_path / "c", target, cast=True, allow_missing=True)
    assert found["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found["a"], half)
    assert found["new"] == "kept"
    assert found["n"].dtype == np.float64
    assert found["b"] == 1.0
    assert type(found["b"]) is float
    with pytest.raises(TreeMismatchError, match="not in the target"):
        jaxckpt.restore(tmp_path / "c", {"b": 0})
    assert jaxckpt.restore(tmp_path / "c", {"b": 0}, allow_extra=True) == {"b": 1}
    abstract = {"b": 0, "z": jax.ShapeDtypeStruct((2,), np.float32)}
    with pytest.raises(TreeMismatchError, match="no value to keep"):
        jaxckpt.restore(tmp_path / "c", abstract, allow_extra=True, allow_missing=True)


def test_a_target_that_jax_would_narrow_is_refused(tmp_path: Path) -> None:
    jaxckpt.save(tmp_path / "c", {"x": np.arange(3)})
    target = {"x": jax.ShapeDtypeStruct((3,), np.int64)}
    with jax.enable_x64(False), pytest.raises(TreeMismatchError, match="jax_enable_x64"):
        jaxckpt.restore(tmp_path / "c", target)
    assert jaxckpt.restore(tmp_path / "c", target)["x"].dtype == np.int64


def test_places_that_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/readme.txt").write_text("x")
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(3, {"a": 1})
        ckpt.save(4, {"a": 1})
    for name, words in {
        "file": ("it is a file", "directory"),
        "empty": ("it is an empty directory",),
        "other": ("readme.txt",),
        "run": ("it is a run with the steps 3, 4", f"{tmp_path}/run/4", "jaxckpt.Checkpointer"),
    }.items():
        with pytest.raises(jaxckpt.NotACheckpointError) as caught:
            jaxckpt.restore(tmp_path / name)
        for word in words:
            assert word in str(caught.value)
    with pytest.raises(jaxckpt.CheckpointNotFoundError, match="there is no checkpoint at"):
        jaxckpt.restore(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        jaxckpt.restore(tmp_path / "missing")
    with pytest.raises(jaxckpt.NotACheckpointError, match="it is a file"):
        jaxckpt.Checkpointer(tmp_path / "file")
    assert jaxckpt.restore(tmp_path / "run/3") == {"a": 1}


@pytest.mark.parametrize(
    "path", ["", None, 3, b"x", "gs://bucket/x", Path("gs://b/x"), "s3:/b", "a\0b"]
)
def test_paths_that_can_not_be(path: Any) -> None:
    for call in (lambda: jaxckpt.save(path, 1), lambda: jaxckpt.restore(path)):
        with pytest.raises(jaxckpt.InvalidOptionsError, match="path"):
            call()


def test_nothing_but_a_checkpoint_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    with pytest.raises(jaxckpt.StepExistsError):
        jaxckpt.save(tmp_path / "mine", {"a": 1})
    with pytest.raises(jaxckpt.NotACheckpointError, match=r"thesis\.tex"):
        jaxckpt.save(tmp_path / "mine", {"a": 1}, force=True)
    assert (tmp_path / "mine/thesis.tex").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(jaxckpt.NotACheckpointError):
        jaxckpt.save(tmp_path / "file", {"a": 1}, force=True)
    jaxckpt.save(tmp_path / "mine/ckpt", {"a": 1})
    with pytest.raises(jaxckpt.NotACheckpointError, match=r"thesis\.tex"):
        jaxckpt.save(tmp_path / "mine", {"a": 1}, force=True)
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a": 1})
    with pytest.raises(jaxckpt.NotACheckpointError):
        jaxckpt.save(tmp_path / "run", {"a": 1}, force=True)
    (tmp_path / "run/1/notes.txt").write_text("x")
    with pytest.raises(jaxckpt.NotACheckpointError, match=r"notes\.txt beside a step"):
        jaxckpt.save(tmp_path / "run/1", {"a": 1}, force=True)
    (tmp_path / "run/1/notes.txt").unlink()
    jaxckpt.save(tmp_path / "run/1", {"a": 3}, force=True)
    assert jaxckpt.restore(tmp_path / "run/1") == {"a": 3}
    jaxckpt.save(tmp_path / "c", {"a": 1})
    jaxckpt.save(tmp_path / "c", {"a": 2}, force=True)
    assert jaxckpt.restore(tmp_path / "c") == {"a": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "file", "mine", "run"]


def test_targets_that_can_not_be(tmp_path: Path, mesh: Mesh) -> None:
    jaxckpt.save(tmp_path / "c", {"1": np.zeros((3, 30_000)), "b": np.zeros(3)})
    x = np.zeros((3, 30_000))
    with pytest.raises(TreeMismatchError, match="there twice in the target"):
        jaxckpt.restore(tmp_path / "c", OrderedDict([(1, x), ("1", x), ("b", np.zeros(3))]))
    with pytest.raises(jaxckpt.InvalidOptionsError, match="target"):
        jaxckpt.restore(tmp_path / "c", {1: x, "1": x})
    uneven = jax.ShapeDtypeStruct(
        (3,), np.float64, sharding=NamedSharding(mesh, PartitionSpec("x"))
    )
    with pytest.raises(TreeMismatchError, match="b: its sharding does not fit"):
        jaxckpt.restore(tmp_path / "c", {"1": x, "b": uneven})
    with pytest.raises(TreeMismatchError, match="tracer"):
        jax.jit(lambda y: jaxckpt.restore(tmp_path / "c", {"1": x, "b": y}))(np.zeros(3))
    with pytest.raises(jaxckpt.InvalidOptionsError, match="options"):
        jaxckpt.restore(tmp_path / "c", options={"checksum": True})  # type: ignore[arg-type]


def test_links_to_a_run_or_a_checkpoint_are_followed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    with jaxckpt.Checkpointer(tmp_path / "runs") as ckpt:
        ckpt.save(1, {"a": 1})
    (tmp_path / "best").symlink_to(tmp_path / "scratch/1")
    assert jaxckpt.restore(tmp_path / "best") == {"a": 1}


def test_a_run_that_vanishes(tmp_path: Path) -> None:
    import shutil

    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(jaxckpt.StorageError, match="No such file"):
            ckpt.save(1, {"a": 1})
        assert ckpt.steps() == []


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(jaxckpt.StorageError, match="file"):
        jaxckpt.save(tmp_path / "file/c", {"a": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunk_bytes", 0), ("chunk_bytes", "1"), ("data_file_bytes", 10), ("memory_budget_bytes", 1.5),
        ("memory_budget_bytes", 0), ("writer_threads", 0), ("writer_threads", True), ("checksum", 1),
        ("compression", "gzip"), ("direct_io", True), ("direct_io", "maybe"),
    ],
)  # fmt: skip
def test_options_are_checked(name: str, value: Any) -> None:
    with pytest.raises(jaxckpt.InvalidOptionsError, match=f"{name}=.*expected") as caught:
        jaxckpt.Options(**{name: value})
    assert caught.value.name == name


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 24 MB of its own; needs root and loop devices."""
    image, where = tmp_path / "image", tmp_path / "disk"
    where.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 24 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], check=False, capture_output=True)
    mounted = made.returncode == 0 and os.geteuid() == 0 and (
        subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=False, capture_output=True).returncode == 0
    )  # fmt: skip
    if not mounted:
        pytest.skip("no loop mounts here")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    with jaxckpt.Checkpointer(small_disk / "run") as ckpt:
        ckpt.save(1, {"w": np.random.default_rng(0).random(500_000)})
        ckpt.wait()
        with pytest.raises(jaxckpt.StorageError, match=r"ENOSPC.*GB are free") as caught:
            ckpt.save(2, {"w": np.random.default_rng(0).random(5_000_000)})
        assert caught.value.errno == 28
        (small_disk / "filler").write_bytes(bytes(small_disk_free(small_disk) - (1 << 20)))
        with pytest.raises(jaxckpt.StorageError, match="ENOSPC"):
            ckpt.save(2, {str(k): np.ones(1000) for k in range(1000)})
            ckpt.wait()
        assert ckpt.steps() == [1]
        assert steps_in(small_disk / "run") == ["1"]
        (small_disk / "filler").unlink()
        ckpt.save(2, {"w": np.ones(1000)})
        ckpt.wait()
        assert ckpt.steps() == [1, 2]


def small_disk_free(path: Path) -> int:
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


def test_no_permission(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    (tmp_path / "closed").mkdir(mode=0o755)
    code = (
        "import os, sys, jaxckpt, numpy as np\n"
        "jaxckpt.save(sys.argv[1] + '/warm', {'a': np.ones(3)})  # imports all that is needed\n"
        "os.chdir(sys.argv[1])\n"
        "os.seteuid(65534)\n"
        "try:\n"
        "    jaxckpt.save('closed/c', {'a': np.ones(3)})\n"
        "except jaxckpt.StorageError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "StorageError" in done.stdout, done.stderr
    assert "Permission denied (EACCES). Check the permissions" in done.stdout
    assert list((tmp_path / "closed").iterdir()) == []


def test_errors_can_be_caught_by_their_builtin_kinds() -> None:
    assert issubclass(jaxckpt.CheckpointNotFoundError, FileNotFoundError)
    assert issubclass(jaxckpt.StepExistsError, FileExistsError)
    assert issubclass(jaxckpt.StorageError, OSError)
    assert issubclass(jaxckpt.TreeMismatchError, ValueError)
    assert issubclass(jaxckpt.UnsupportedLeafError, TypeError)
    names = [n for n in jaxckpt.__all__ if n.endswith("Error")]
    assert all(issubclass(getattr(jaxckpt, n), jaxckpt.JaxckptError) for n in names)
