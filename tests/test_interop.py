"""Both directions with plain orbax, which runs where jaxckpt can not be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import plain_orbax
import pytest

import jaxckpt
from jaxckpt.testing.strategies import assert_same

SCRIPT = Path(__file__).with_name("plain_orbax.py")


def plain(action: str, path: Path, how: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), action, str(path), how],
        capture_output=True,
        text=True,
        cwd=path.parent,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if action == "restore" else {}


def expected(how: str = "") -> dict[str, Any]:
    return json.loads(json.dumps(plain_orbax.flat(plain_orbax.full(how))))


def full_state(how: str = "") -> dict[str, Any]:
    return plain_orbax.full(how)


@pytest.mark.parametrize(
    "how", ["standard", "standard-target", "standard-other-mesh", "pytree", "pytree-target"]
)
def test_plain_orbax_restores_a_directory(tmp_path: Path, how: str) -> None:
    jaxckpt.save(tmp_path / "c", full_state(how))
    assert plain("restore", tmp_path / "c", how) == expected(how)


@pytest.mark.parametrize(
    "options", [{"compression": "zstd"}, {"checksum": False}, {"chunk_bytes": 4096}]
)
def test_plain_orbax_restores_every_option(tmp_path: Path, options: dict[str, Any]) -> None:
    jaxckpt.save(tmp_path / "c", full_state(), options=jaxckpt.Options(**options))
    assert plain("restore", tmp_path / "c", "standard") == expected()


@pytest.mark.parametrize("how", ["manager", "manager-target"])
def test_plain_orbax_restores_a_run_of_the_checkpointer(tmp_path: Path, how: str) -> None:
    with jaxckpt.Checkpointer(tmp_path / "run", keep_last=2) as ckpt:
        for step in (1, 2, 30):
            ckpt.save(step, full_state())
    assert plain("restore", tmp_path / "run", how) == expected()


def test_plain_orbax_restores_a_run_with_items(tmp_path: Path) -> None:
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, full_state(), items={"config": {"lr": 0.1}})
    assert plain("restore", tmp_path / "run", "manager-composite") == expected()


@pytest.mark.parametrize("how", ["manager", "manager-target"])
def test_plain_orbax_restores_what_our_handler_saved(tmp_path: Path, how: str) -> None:
    with ocp.CheckpointManager(
        tmp_path / "run", item_handlers=jaxckpt.ShardedCheckpointHandler()
    ) as manager:
        manager.save(7, args=jaxckpt.ShardedSave(full_state()))
    assert plain("restore", tmp_path / "run", how) == expected()


def test_plain_orbax_reports_a_flipped_bit(tmp_path: Path) -> None:
    jaxckpt.save(tmp_path / "c", full_state())
    file = tmp_path / "c/ocdbt.process_0/d/data-00000"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "restore", str(tmp_path / "c"), "standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "DATA_LOSS" in done.stderr or "CRC" in done.stderr.upper()


@pytest.mark.parametrize(
    "how", ["zarr2", "zarr3", "zarr2-files", "zarr3-files", "zarr2-plain", "zarr3-plain", "v1"]
)
def test_we_restore_what_plain_orbax_wrote(tmp_path: Path, how: str) -> None:
    plain("write", tmp_path / "c", how)
    state = full_state(how)
    if how not in ("v1", "zarr2-files", "zarr3-files"):
        state["keys"] = jax.random.split(jax.random.key(5), 3)
    assert_same(state, jaxckpt.restore(tmp_path / "c", state))
    found = jaxckpt.restore(tmp_path / "c")
    assert plain_orbax.flat(found) == plain_orbax.flat(state)


def test_we_restore_onto_another_mesh_what_plain_orbax_wrote(tmp_path: Path) -> None:
    plain("write", tmp_path / "c", "zarr3")
    state = plain_orbax.arrays()
    other = plain_orbax.sharding(None, "y")
    target = jax.ShapeDtypeStruct((256, 128), np.float32, sharding=other)
    found = jaxckpt.restore(tmp_path / "c", {"sharded": target}, allow_extra=True)["sharded"]
    assert found.sharding == other
    np.testing.assert_array_equal(found, state["sharded"])


@pytest.mark.parametrize("how", ["manager", "manager-composite"])
def test_we_go_on_with_a_run_that_plain_orbax_began(tmp_path: Path, how: str) -> None:
    plain("write", tmp_path / "run", how)
    state = full_state()
    with jaxckpt.Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.steps() == [5]
        found, step = ckpt.restore_or(state)
        assert step == 5
        assert_same(state, found)
        ckpt.save(6, found)
        ckpt.wait()
        assert ckpt.steps() == [5, 6]
        if how == "manager-composite":
            assert ckpt.restore_item("config", 5) == {"lr": 0.1}


def test_our_handler_restores_what_orbax_saved_in_the_same_manager(tmp_path: Path) -> None:
    plain("write", tmp_path / "run", "manager")
    state = full_state()
    handler = jaxckpt.ShardedCheckpointHandler()
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler) as manager:
        assert_same(state, manager.restore(5, args=jaxckpt.ShardedRestore(state)))
        manager.save(6, args=jaxckpt.ShardedSave(state))
        manager.wait_until_finished()
        assert manager.all_steps() == [5, 6]
        assert_same(state, manager.restore(6, args=jaxckpt.ShardedRestore(state)))
        assert manager.item_metadata(6) is not None


def test_our_handler_beside_other_items(tmp_path: Path) -> None:
    state = full_state()
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("state", jaxckpt.ShardedSave, jaxckpt.ShardedCheckpointHandler())
    with ocp.CheckpointManager(tmp_path / "run", handler_registry=registry) as manager:
        manager.save(
            1,
            args=ocp.args.Composite(
                state=jaxckpt.ShardedSave(state), config=ocp.args.JsonSave({"lr": 0.1})
            ),
        )
    assert plain("restore", tmp_path / "run", "manager-composite") == expected()


def test_our_handler_in_a_plain_checkpointer(tmp_path: Path) -> None:
    state = full_state()
    for make in (ocp.Checkpointer, ocp.AsyncCheckpointer):
        path = tmp_path / make.__name__
        with make(jaxckpt.ShardedCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=jaxckpt.ShardedSave(state))
        with make(jaxckpt.ShardedCheckpointHandler()) as checkpointer:
            assert_same(state, checkpointer.restore(path, args=jaxckpt.ShardedRestore(state)))
        assert plain("restore", path, "standard") == expected()


def test_errors_come_through_the_handler(tmp_path: Path) -> None:
    handler = jaxckpt.ShardedCheckpointHandler()
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler) as manager:
        manager.save(1, args=jaxckpt.ShardedSave({"a": np.arange(3)}))
        manager.wait_until_finished()
        with pytest.raises(jaxckpt.TreeMismatchError):
            manager.restore(1, args=jaxckpt.ShardedRestore({"a": np.arange(4)}))
        found = manager.restore(1, args=jaxckpt.ShardedRestore({"a": np.zeros(3)}, cast=True))
        assert found["a"].dtype == np.float64
        with pytest.raises(jaxckpt.UnsupportedLeafError):
            manager.save(2, args=jaxckpt.ShardedSave({"a": object()}))
        assert manager.all_steps() == [1]
    with pytest.raises(jaxckpt.InvalidOptionsError):
        jaxckpt.ShardedSave(ocp.args.StandardSave({}))


def test_many_saves_in_a_manager_keep_their_own_values(tmp_path: Path) -> None:
    handler = jaxckpt.ShardedCheckpointHandler()
    options = ocp.CheckpointManagerOptions(max_to_keep=3)
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler, options=options) as manager:
        for step in range(8):
            x = np.full(400_000, step)
            manager.save(step, args=jaxckpt.ShardedSave({"x": x}))
            x[:] = -1
        manager.wait_until_finished()
        assert manager.all_steps() == [5, 6, 7]
        for step in (5, 6, 7):
            found = manager.restore(step, args=jaxckpt.ShardedRestore())
            assert (found["x"] == step).all()


@pytest.mark.parametrize(
    "tree",
    [
        np.arange(3.0),
        {"": np.ones(2)},
        {"a/b": np.ones(2)},
        {"a": {"": np.ones(1)}},
        {"ü \n": np.ones(1)},
    ],
    ids=["bare", "empty name", "slash", "empty name below", "unicode"],
)
def test_odd_names(tmp_path: Path, tree: Any) -> None:
    jaxckpt.save(tmp_path / "c", tree)
    found = plain("restore", tmp_path / "c", "odd")
    assert list(found.values()) == [plain_orbax.bits(x) for x in jax.tree.leaves(tree)]
    ocp.PyTreeCheckpointer().save(tmp_path / "o", tree)
    assert_same(tree, jaxckpt.restore(tmp_path / "o", tree))
    assert_same(tree, jaxckpt.restore(tmp_path / "c"))
