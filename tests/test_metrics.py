"""Metrics beside a step: for policies, and for orbax's manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxckpt
from jaxckpt import Checkpointer, policy

LOSSES = {1: 0.5, 2: 0.1, 3: 0.4, 4: float("nan"), 5: 0.3}


def state(k: int) -> dict[str, Any]:
    return {"w": jnp.full((4, 4), float(k))}


def run_of(path: Path, keep: Any) -> Path:
    with Checkpointer(path, keep_policy=keep) as ckpt:
        for step, loss in LOSSES.items():
            ckpt.save(step, state(step), metrics={"loss": jnp.float32(loss), "k": step})
            ckpt.wait()
    return path


def test_the_best_stays_beside_the_newest_and_in_the_next_process_too(tmp_path: Path) -> None:
    keep = policy.KeepBest(1, "loss")
    run = run_of(tmp_path / "run", keep)
    with Checkpointer(run, keep_policy=keep) as ckpt:
        assert ckpt.steps() == [2, 5]
        ckpt.save(6, state(6), metrics={"loss": 0.2})
        ckpt.wait()
        assert ckpt.steps() == [2, 6]
        ckpt.save(7, state(7), metrics={"loss": 0.05})
        ckpt.wait()
        ckpt.save(8, state(8))
        ckpt.wait()
        assert ckpt.steps() == [7, 8]
        np.testing.assert_array_equal(ckpt.restore(step=7)["w"], state(7)["w"])


def test_orbax_finds_the_best_of_our_steps(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", policy.KeepSteps({1, 2, 3}))
    options = ocp.CheckpointManagerOptions(best_fn=lambda m: m["loss"], best_mode="min")
    with ocp.CheckpointManager(run.absolute(), options=options) as manager:
        assert manager.all_steps() == [1, 2, 3, 5]
        assert manager.best_step() == 2
        assert manager.metrics(3) == {"loss": pytest.approx(0.4), "k": 3.0}
        found = manager.restore(2, args=ocp.args.StandardRestore(state(0)))
        np.testing.assert_array_equal(found["w"], state(2)["w"])


def test_ours_finds_the_best_of_orbaxs_steps(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda m: m["loss"], best_mode="min")
    with ocp.CheckpointManager((tmp_path / "run").absolute(), options=options) as manager:
        for step in (1, 2, 3):
            manager.save(
                step, args=ocp.args.StandardSave(state(step)), metrics={"loss": LOSSES[step]}
            )
    with Checkpointer(tmp_path / "run", keep_policy=policy.KeepBest(1, "loss")) as ckpt:
        ckpt.save(4, state(4), metrics={"loss": 0.9})
        ckpt.wait()
        assert ckpt.steps() == [2, 4]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([1], "metrics=.* expected a dict of names and numbers"),
        ({"loss": "low"}, r"metrics\['loss'\]=.* expected a number"),
        ({1: 2.0}, "names that are text"),
        ({"loss": jnp.ones(3)}, r"metrics\['loss'\]"),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path: Path, metrics: Any, words: str) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(jaxckpt.InvalidOptionsError, match=words):
            ckpt.save(1, state(1), metrics=metrics)
        with pytest.raises(jaxckpt.InvalidOptionsError, match="'metrics'"):
            ckpt.save(1, state(1), items={"metrics": 1})
        ckpt.save(1, state(1), items={"position": 3}, metrics={"loss": float("inf")})
        ckpt.wait()
        assert ckpt.restore_item("position") == 3
        assert float(ckpt.restore(state(0))["w"][0, 0]) == 1


def test_a_step_whose_metrics_can_not_be_read_stays(tmp_path: Path) -> None:
    """It may be the best one."""
    keep = policy.KeepBest(1, "loss")
    run = run_of(tmp_path / "run", keep)
    (run / "2" / "metrics" / "metrics").write_text('{"loss": NaN')
    with Checkpointer(run, keep_policy=keep) as ckpt:
        for step in (6, 7):
            ckpt.save(step, state(step), metrics={"loss": 0.2})
            ckpt.wait()
        assert ckpt.steps() == [2, 7]
