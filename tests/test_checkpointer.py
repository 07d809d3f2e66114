"""The training-loop object: schedule, retention, items, errors, the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import steps_in

import jaxckpt
from jaxckpt import Checkpointer
from jaxckpt.saving import StagedItem
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.strategies import assert_same


def state(k: int = 0) -> dict[str, Any]:
    return {"w": jnp.full((4, 4), k), "k": k}


def test_saves_only_when_due(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", save_every=3) as ckpt:
        assert [ckpt.save(s, state(s)) for s in range(1, 8)] == [False, False, True] * 2 + [False]
        assert ckpt.save(7, state(7), force=True)
        ckpt.wait()
        assert ckpt.steps() == [3, 6, 7]
        assert ckpt.latest_step() == 7
        assert_same(state(6), ckpt.restore(state(), step=6))
        assert_same(state(7), ckpt.restore(state()))


def test_keeps_the_newest(tmp_path: Path) -> None:
    one_by_one = jaxckpt.Options(in_flight=1)
    with Checkpointer(tmp_path / "run", keep_last=2, options=one_by_one) as ckpt:
        for step in range(6):
            ckpt.save(step, state(step))
        ckpt.wait()
        assert ckpt.steps() == [4, 5]
    assert steps_in(tmp_path / "run") == ["4", "5"]


def test_goes_back_to_an_older_step_and_keeps_what_it_saves_then(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", keep_last=1) as ckpt:
        ckpt.save(10, state(10))
        ckpt.save(3, state(3))
        ckpt.wait()
        assert 3 in ckpt.steps()


def test_restore_or_begins_at_zero_and_goes_on(tmp_path: Path) -> None:
    first = state(1)
    with Checkpointer(tmp_path / "run") as ckpt:
        same, step = ckpt.restore_or(first)
        assert same is first
        assert step == 0
        ckpt.save(5, first)
        found, step = ckpt.restore_or(state(0))
        assert step == 5
        assert_same(first, found)


def test_replaces_a_step_only_when_asked(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state(1))
        ckpt.wait()
        with pytest.raises(jaxckpt.StepExistsError, match="force=True"):
            ckpt.save(1, state(2))
        assert_same(state(1), ckpt.restore(state()))
        ckpt.save(1, state(3), force=True)
        ckpt.wait()
        assert_same(state(3), ckpt.restore(state()))
    assert steps_in(tmp_path / "run") == ["1"]


def test_items_beside_the_state(tmp_path: Path) -> None:
    config = {"lr": 0.1, "layers": [1, 2], "name": "ü"}
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state(1), items={"config": config, "position": 17})
        assert ckpt.restore_item("config") == config
        assert ckpt.restore_item("position", step=1) == 17
        assert_same(state(1), ckpt.restore(state()))
        with pytest.raises(jaxckpt.NotACheckpointError, match="config, position, state"):
            ckpt.restore_item("other")
        for bad in (
            {"x/y": 1},
            {"state": 1},
            {"default": 1},
            {"x": {1, 2}},
            {"x": float("nan")},
            {"x": {1: 0, "1": 0}},
        ):
            with pytest.raises(jaxckpt.InvalidOptionsError, match="items"):
                ckpt.save(2, state(2), items=bad)
        with pytest.raises(jaxckpt.InvalidOptionsError, match="name"):
            ckpt.restore_item("../1/config")
        assert ckpt.steps() == [1]


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(
            jaxckpt.StepNotFoundError, match="no step at all; the steps there are: none"
        ):
            ckpt.restore()
        ckpt.save(4, state())
        with pytest.raises(
            jaxckpt.StepNotFoundError, match="no step 9; the steps there are: 4"
        ) as caught:
            ckpt.restore(step=9)
        assert caught.value.available == (4,)


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None, 10**16])
def test_a_step_must_be_a_whole_number(tmp_path: Path, step: Any) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(jaxckpt.InvalidOptionsError, match="step"):
            ckpt.save(step, state())
        assert ckpt.steps() == []


@pytest.mark.parametrize(
    "kwargs", [{"save_every": 0}, {"save_every": 1.0}, {"keep_last": 0}, {"keep_last": True}]
)
def test_counts_must_be_positive(tmp_path: Path, kwargs: Any) -> None:
    with pytest.raises(jaxckpt.InvalidOptionsError):
        Checkpointer(tmp_path / "run", **kwargs)
    assert not (tmp_path / "run").exists()


def test_after_close_nothing_works_and_closing_twice_does(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path / "run")
    ckpt.save(1, state())
    ckpt.close()
    ckpt.close()
    for call in (lambda: ckpt.save(2, state()), lambda: ckpt.restore(), lambda: ckpt.restore_or(1)):
        with pytest.raises(jaxckpt.ClosedError, match="make a new one"):
            call()
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxckpt")]


def test_an_error_in_the_loop_is_not_hidden_and_the_save_before_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state(1))
        _ = 1 / 0
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.steps() == [1]


def test_a_save_under_way_ends_with_the_interpreter(tmp_path: Path) -> None:
    code = (
        "import numpy as np, jaxckpt, sys\n"
        "ckpt = jaxckpt.Checkpointer(sys.argv[1])\n"
        "ckpt.save(1, {'w': np.arange(3_000_000.0)})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, timeout=120)
    with Checkpointer(tmp_path / "run") as ckpt:
        assert (ckpt.restore(step=1)["w"] == np.arange(3_000_000.0)).all()


def test_leftovers_of_a_killed_process_go_and_those_of_a_live_one_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    code = (
        "import numpy as np, jaxckpt, sys, os, signal\n"
        "from jaxckpt.saving import StagedItem\n"
        "StagedItem.write = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "ckpt = jaxckpt.Checkpointer(sys.argv[1])\n"
        "ckpt.save(1, {'w': np.arange(3_000_000.0)})\n"
        "ckpt.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], check=False, timeout=120)
    assert done.returncode == -9
    assert [p.name for p in run.iterdir() if p.name.startswith(".jaxckpt-tmp-1-")]
    with Checkpointer(run) as ckpt:
        assert steps_in(run) == []
        assert ckpt.steps() == []
        live = Checkpointer(run)
        begun, held = threading.Event(), threading.Event()
        write = StagedItem.write

        def held_back(self: StagedItem) -> None:
            begun.set()
            held.wait()
            write(self)

        monkeypatch.setattr(StagedItem, "write", held_back)
        live.save(1, state(1))
        assert begun.wait(60)
        with Checkpointer(run) as other:
            assert other.steps() == []
            assert [p.name for p in run.iterdir() if p.name.startswith(".jaxckpt-tmp-1-")]
        held.set()
        live.close()
        assert ckpt.steps() == [1]


def test_memory_stays_within_the_budget_and_flat(tmp_path: Path) -> None:
    """A state larger than the budget is staged in pieces by the same code."""
    options = jaxckpt.Options(memory_budget_bytes=16 << 20)
    big = {"w": np.random.default_rng(0).random(8 << 20), "v": np.ones((3000, 1001))[:, ::2]}
    with Checkpointer(tmp_path / "run", keep_last=1, options=options) as ckpt:
        held: list[int] = []
        for step in range(1, 8):
            ckpt.save(step, big)
            ckpt.wait()
            held.append(ckpt._pool._held)
        assert ckpt._pool.peak_bytes <= 16 << 20
        # How many blocks are wanted at once is up to the threads; what was taken is used again.
        assert held == sorted(held)
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        assert_same(big["w"], ckpt.restore(step=7)["w"])


def test_a_small_budget_never_makes_copies_wait_for_one_another(tmp_path: Path) -> None:
    """Large and small chunks in turns, far more of them than the budget has blocks."""
    options = jaxckpt.Options(memory_budget_bytes=16 << 20, chunk_bytes=2 << 20)
    rng = np.random.default_rng(0)
    many = {f"{k:03}": rng.random(250_000 if k % 2 else 6_000) for k in range(120)}
    many["turned"] = rng.random((1500, 1500)).T
    with Checkpointer(tmp_path / "run", options=options) as ckpt:
        ckpt.save(1, many)
        ckpt.wait()
        assert ckpt._pool.peak_bytes <= 16 << 20
        assert_same(many, ckpt.restore(many))


def test_all_memory_comes_back_after_errors(tmp_path: Path) -> None:
    from jaxckpt.testing.faulty_store import FaultyStore, KilledError

    options = jaxckpt.Options(memory_budget_bytes=16 << 20)
    big = {"w": np.random.default_rng(0).random(4 << 20)}
    from conftest import world_of

    store = FaultyStore(MemoryStore(), counted=frozenset({"write"}), fail_at=2)
    ckpt = Checkpointer("/run", options=options, world=world_of(store))
    for step in range(4):
        with pytest.raises(KilledError):
            ckpt.save(step, big)
            ckpt.wait()
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
    ckpt.close()
