"""Our policies inside orbax's own CheckpointManager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from jaxckpt import policy


def manager(folder: Path, **policies: Any) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, **policies)
    return ocp.CheckpointManager(folder, options=options)


def run(found: ocp.CheckpointManager, steps: range, losses: Any = None) -> list[int]:
    """Offers every step; which were saved."""
    return [
        step
        for step in steps
        if found.save(
            step,
            args=ocp.args.StandardSave({"w": np.full(4, step)}),
            metrics=None if losses is None else {"loss": losses[step]},
        )
    ]


def test_every_steps_and_named_ones(tmp_path: Path) -> None:
    save = policy.EverySteps(4) | policy.AtSteps({5}) | policy.OnPreemption()
    keep = policy.KeepLast(2) | policy.KeepSteps({5})
    with manager(tmp_path, save_decision_policy=save, preservation_policy=keep) as found:
        assert run(found, range(14)) == [0, 4, 5, 8, 12]
        assert sorted(found.all_steps()) == [5, 8, 12]


def test_every_so_many_seconds(tmp_path: Path) -> None:
    """However slow the machine: an hour is not over, and a billionth of a second always is."""
    hour = policy.EverySecs(3600)
    with manager(tmp_path / "a", save_decision_policy=hour) as found:
        assert run(found, range(5)) == [0]
    with manager(tmp_path / "b", save_decision_policy=policy.EverySecs(1e-9)) as found:
        assert run(found, range(5)) == [0, 1, 2, 3, 4]
        assert run(found, range(5, 6)) == [5]


def test_the_best_stays_beside_the_newest(tmp_path: Path) -> None:
    losses = [5.0, 1.0, 4.0, float("nan"), 3.0, 2.0]
    rules = {
        "save_decision_policy": policy.EverySteps(1),
        "preservation_policy": policy.KeepLast(1) | policy.KeepBest(2, "loss"),
        "best_fn": lambda metrics: metrics["loss"],  # without it orbax does not store metrics
        "best_mode": "min",
    }
    with manager(tmp_path, **rules) as found:
        assert run(found, range(5), losses) == [0, 1, 2, 3, 4]
        assert sorted(found.all_steps()) == [1, 4]
    with manager(tmp_path, **rules) as found:
        assert run(found, range(5, 6), losses) == [5], "metrics that were read back from disk"
        assert sorted(found.all_steps()) == [1, 5]


def test_orbax_and_ours_together(tmp_path: Path) -> None:
    theirs = ocp.checkpoint_managers
    save = theirs.FixedIntervalPolicy(6) | policy.AtSteps({1})
    keep = policy.KeepEverySteps(12) | theirs.LatestN(1)
    with manager(tmp_path, save_decision_policy=save, preservation_policy=keep) as found:
        assert run(found, range(20)) == [0, 1, 6, 12, 18]
        assert sorted(found.all_steps()) == [0, 12, 18]
