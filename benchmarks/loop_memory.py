"""Host memory of a loop of many saves, beyond what the loop has without them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import numpy as np

import jaxckpt
from benchmarks import states
from benchmarks.loop_savers import Tree
from benchmarks.memory import high_water, reset_high_water, resident

MIB = 1 << 20
BUDGET_BYTES = 192 * MIB
_WARM_UP_STEPS = 20
_EARLY = 0.1


@dataclass(frozen=True)
class LoopMemory:
    """Bytes.

    Attributes:
        nbytes: of the state.
        saves: how many were asked for, one a step.
        dropped: of them, for newer ones.
        peak: most that was held beyond the loop without saves, at any time.
        early: resident, after a tenth of the saves.
        late: after all.
    """

    nbytes: int
    budget: int
    saves: int
    dropped: int
    peak: int
    early: int
    late: int


@functools.partial(jax.jit, donate_argnums=0)
def _step(state: Tree) -> Tree:
    return jax.tree.map(lambda x: x * np.float32(1.0000001), state)


def measure_memory(folder: str, nbytes: float, saves: int) -> LoopMemory:
    """A loop that donates and saves at every step, in a process of its own."""
    large = states.large(nbytes)
    state, size = large.arrays, large.nbytes
    del large
    for _ in range(_WARM_UP_STEPS):
        state = jax.block_until_ready(_step(state))
    options = jaxckpt.Options(memory_budget_bytes=BUDGET_BYTES)
    make, early = jaxckpt.Checkpointer, 0
    before = reset_high_water()
    with make(folder, keep_last=2, options=options) as checkpointer:
        for step in range(1, saves + 1):
            state = jax.block_until_ready(_step(state))
            checkpointer.save(step, state)
            if step == max(1, int(_EARLY * saves)):
                checkpointer.wait()
                early = resident()
        checkpointer.wait()
        peak, late = high_water() - before, resident()
        return LoopMemory(size, BUDGET_BYTES, saves, checkpointer.dropped, peak, early, late)
