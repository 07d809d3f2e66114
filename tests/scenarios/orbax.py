"""The side of a job with jaxckpt and orbax together."""

from __future__ import annotations

from typing import Any

import orbax.checkpoint as ocp
from scenarios.state import assert_arrays, mesh_of, orbax_state, orbax_target

import jaxckpt


def write(directory: str, seed: int, mesh: list[Any], specs: list[Any]) -> None:
    """A directory, a run of the Checkpointer and one of orbax's manager with our handler."""
    on = mesh_of(*mesh)
    one, two = (orbax_state(s, on, specs) for s in (seed, seed + 1))
    jaxckpt.save(f"{directory}/c", one)
    with jaxckpt.Checkpointer(f"{directory}/run") as checkpointer:
        checkpointer.save(1, one)
        checkpointer.save(2, two)
    handler = jaxckpt.ShardedCheckpointHandler()
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(
        f"{directory}/managed", options=options, item_handlers=handler
    ) as manager:
        for step, state in enumerate((one, one, two)):
            assert manager.save(step, args=jaxckpt.ShardedSave(state))
        manager.wait_until_finished()
        assert manager.latest_step() == 2
        assert sorted(manager.all_steps()) == [1, 2]
        target = orbax_target(mesh_of(*mesh), [[], *specs])
        found = manager.restore(2, args=jaxckpt.ShardedRestore(target))
        assert_arrays(seed + 1, found, "managed")
        found = manager.restore(1, args=jaxckpt.ShardedRestore(target))
        assert_arrays(seed, found, "managed, the older one")


def restore(directory: str, seed: int, mesh: list[Any], specs: list[Any]) -> None:
    """What plain orbax wrote."""
    target = orbax_target(mesh_of(*mesh), specs)
    for name in ("c", "z"):
        for way in ("allgather", "direct"):
            options = jaxckpt.Options(complete=way)
            found = jaxckpt.restore(f"{directory}/{name}", target, options=options)
            assert_arrays(seed, found, (name, way))
    with jaxckpt.Checkpointer(f"{directory}/run") as checkpointer:
        found, step = checkpointer.restore_or(orbax_state(0, mesh_of(*mesh), specs))
        assert step == 2
        assert_arrays(seed, found, "run")
        checkpointer.save(3, found)
        checkpointer.wait()
        assert checkpointer.steps() == [2, 3]
