"""jaxckpt, as it comes and without its checksums."""

from __future__ import annotations

import jax

import jaxckpt
from benchmarks.cases import Case
from benchmarks.states import State

OURS, OURS_PLAIN = "jaxckpt", "jaxckpt-nosum"


def ours(state: State) -> Case:
    """jaxckpt with its defaults."""
    return _case(state, OURS, "jaxckpt", "defaults", jaxckpt.Options())


def ours_without_checksum(state: State) -> Case:
    """What the checksums cost."""
    options = jaxckpt.Options(checksum=False)
    return _case(state, OURS_PLAIN, "jaxckpt, no checksum", "checksum=False", options)


def _case(state: State, name: str, label: str, settings: str, options: jaxckpt.Options) -> Case:
    def restore(path: str) -> dict[str, jax.Array]:
        return jax.block_until_ready(jaxckpt.restore(path, state.target, options=options))

    return Case(
        name=name,
        label=label,
        settings=settings,
        save=lambda path: jaxckpt.save(path, state.arrays, options=options),
        restore=restore,
        verify=state.verify_sharded,
    )
