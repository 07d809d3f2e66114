"""The side of a job without jaxckpt: stock orbax."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from scenarios.state import assert_arrays, mesh_of, orbax_state, orbax_target


def restore(directory: str, seed: int, mesh: list[Any], specs: list[Any]) -> None:
    """What jaxckpt saved, with each of orbax's restorers."""
    target = orbax_target(mesh_of(*mesh), specs)
    found = ocp.StandardCheckpointer().restore(f"{directory}/c", target)
    assert_arrays(seed, found, "standard")
    args = ocp.checkpoint_utils.construct_restore_args(target)
    found = ocp.PyTreeCheckpointer().restore(f"{directory}/c", item=target, restore_args=args)
    assert_arrays(seed, found, "pytree")
    for run in ("run", "managed"):
        with ocp.CheckpointManager(f"{directory}/{run}") as manager:
            step = manager.latest_step()
            assert step == 2
            found = manager.restore(step, args=ocp.args.StandardRestore(target))
            assert_arrays(seed + 1, found, run)
    if jax.process_count() == 1:
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
        found = ocp.PyTreeCheckpointer().restore(f"{directory}/c", restore_args=plain)
        assert_arrays(seed, found, "numpy")


def write(directory: str, seed: int, mesh: list[Any], specs: list[Any]) -> None:
    state = orbax_state(seed, mesh_of(*mesh), specs)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{directory}/c", state)
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)).save(f"{directory}/z", state)
    with ocp.CheckpointManager(f"{directory}/run") as manager:
        manager.save(2, args=ocp.args.StandardSave(state))
