"""For how long one save stops a loop, beside a plain copy of the state in memory.

Each save begins when the one before has ended, the disk is quiet and all memory was used before.
After it comes a step. On the CPU backend a library may take views of the arrays and return at once;
then a step that donates finds its memory in use and must take new, so the call alone does not tell
what the loop pays. jaxckpt does one or the other, by what the loop did with the state before. So
each habit of a loop has rounds of its own, with savers that never see the other.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks import disk, states
from benchmarks.loop_savers import (
    COPY,
    EAGER,
    LAZY,
    NONE,
    ORBAX,
    ORBAX_RAW,
    ORBAXES,
    TORCH,
    TORCH_KEPT,
    TORCHES,
    VIEWS,
    Counts,
    Saver,
    Tree,
    orbax,
    ours,
    torch_dcp,
)
from benchmarks.measure import WARM_UP
from benchmarks.states import State

MANY_LEAVES = 1_000
LARGE, SMALL, SMALLER, UNSHARDED = "large", "1000 x 64 KiB", "1000 x 4 KiB", "1000 x 64 KiB, whole"
MANY = (SMALL, SMALLER, UNSHARDED)
_ORDER_SEED = 0
_QUIET_SECS = 0.2
_GROUPS_A_CORE = 8
DONATED, KEPT = "donated", "kept"
HABITS = (DONATED, KEPT)
_CASES = {
    LARGE: (NONE, COPY, EAGER, VIEWS, LAZY, ORBAX, ORBAX_RAW, TORCH, TORCH_KEPT),
    SMALL: (NONE, EAGER, VIEWS, ORBAX, TORCH),
    SMALLER: (NONE, EAGER, VIEWS, ORBAX),
    UNSHARDED: (NONE, EAGER, VIEWS, ORBAX, TORCH),
}
_DONATED_ONLY = (LAZY, TORCH, TORCH_KEPT)  # those that do the same in both
_SLOW_ROUNDS = 3  # of torch, and of orbax with many leaves: seconds until a save ends


@dataclass(frozen=True)
class Stall:
    """One save; all times from the call.

    Attributes:
        habit: whether the step after it donates the state, or keeps it and makes new arrays.
        call: seconds until the call returned.
        staged: until the state might be changed.
        stepped: until the next step was done.
        ended: until the library said that the save has ended.
    """

    state: str
    nbytes: int
    habit: str
    case: str
    round: int
    call: float
    staged: float
    stepped: float
    ended: float


def measure_stalls(
    folder: str, nbytes: float, leaves: int, rounds: int, say: Callable[[str], None]
) -> tuple[list[Stall], dict[str, str], list[str]]:
    """All samples, the settings of each case, and what was left out."""
    samples: list[Stall] = []
    settings: dict[str, str] = {}
    notes: list[str] = []
    for name in _CASES:
        state = _state(name, nbytes, leaves)
        for habit in HABITS:
            place = os.path.join(folder, f"{name.replace(' ', '-')}-{habit}")
            savers = _savers(name, habit, state, place, notes)
            settings |= {saver.name: saver.settings for saver in savers}
            samples += _rounds(name, habit, state, savers, rounds, say)
            for saver in savers:
                saver.close()
            disk.remove(place)
    return samples, settings, notes


def _state(name: str, nbytes: float, leaves: int) -> State:
    if name == LARGE:
        return states.large(nbytes)
    side = 32 if name == SMALLER else 128
    return states.many(leaves, (side, side), whole=name == UNSHARDED)


def cases(name: str, habit: str) -> list[str]:
    """What is measured for a state and a habit."""
    return [case for case in _CASES[name] if habit == DONATED or case not in _DONATED_ONLY]


def _savers(name: str, habit: str, state: State, folder: str, notes: list[str]) -> list[Saver]:
    savers: list[Saver] = []
    for case in cases(name, habit):
        home = os.path.join(folder, case)
        os.makedirs(home)
        try:
            savers.append(_saver(case, home, state))
        except ImportError as error:
            notes.append(f"{case} is left out: {error}")
    return savers


def _saver(case: str, home: str, state: State) -> Saver:
    if case == COPY:
        return plain_copy(state.host)
    if case == NONE:
        return _no_checkpoint()
    if case in (EAGER, VIEWS, LAZY):
        return ours(home, lazy=case == LAZY, views=case == VIEWS, keep_last=1)
    if case in (ORBAX, ORBAX_RAW):
        return orbax(home, case, keep_last=1)
    return torch_dcp(home, case, keep_last=1, views=dict(state.host))


def plain_copy(host: dict[str, NDArray[Any]]) -> Saver:
    """A copy of the state's data to memory that was touched before, on as many threads as cores."""
    cores = len(os.sched_getaffinity(0))
    threads = ThreadPoolExecutor(cores)
    pairs = [(np.zeros_like(leaf), leaf) for leaf in host.values()]
    each = max(1, len(pairs) // (_GROUPS_A_CORE * cores))
    groups = [pairs[start : start + each] for start in range(0, len(pairs), each)]

    def copy(group: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        for target, source in group:
            np.copyto(target, source)

    def save(_step: int, _state: Tree) -> None:
        for _ in threads.map(copy, groups):
            pass

    settings = "numpy.copyto of the data to touched memory, as many threads as cores"
    return _without_files(COPY, settings, save, threads.shutdown)


def _no_checkpoint() -> Saver:
    return _without_files(NONE, "the step alone", lambda _step, _state: None, lambda: None)


def _without_files(
    name: str, settings: str, save: Callable[[int, Tree], None], close: Callable[[], object]
) -> Saver:
    return Saver(
        name=name,
        settings=settings,
        save=save,
        finish=lambda: None,
        counts=lambda: Counts(0, 0, None),
        close=close,
    )


def _step(state: Tree) -> Tree:
    """Every element is read and written, as an optimizer does."""
    return jax.tree.map(lambda x: x * np.float32(1.0000001), state)


_STEPS: dict[str, Callable[[Tree], Tree]] = {
    DONATED: jax.jit(_step, donate_argnums=0),  # in place
    KEPT: jax.jit(_step),
}


def _rounds(
    name: str,
    habit: str,
    state: State,
    savers: list[Saver],
    rounds: int,
    say: Callable[[str], None],
) -> list[Stall]:
    order, samples, step = random.Random(_ORDER_SEED), list[Stall](), 0
    # The state's own arrays stay what they are; these go from step to step.
    arrays = jax.block_until_ready(jax.tree.map(lambda x: x + 0, state.arrays))
    for number in [WARM_UP, *range(rounds)]:
        for saver in order.sample(savers, len(savers)):
            slow = TORCHES if name == LARGE else (*TORCHES, *ORBAXES)
            if saver.name in slow and number >= _SLOW_ROUNDS:
                continue
            step += 1
            disk.settle(_QUIET_SECS)
            began = time.perf_counter()
            saver.save(step, arrays)
            call = time.perf_counter() - began
            saver.ready()
            staged = time.perf_counter() - began
            arrays = jax.block_until_ready(_STEPS[habit](arrays))
            stepped = time.perf_counter() - began
            saver.finish()
            ended = time.perf_counter() - began
            times = (call, staged, stepped, ended)
            samples.append(Stall(name, state.nbytes, habit, saver.name, number, *times))
            words = f"call {call * 1e3:8.2f} ms, with the step {stepped * 1e3:8.2f} ms"
            say(f"{name:<20} {habit:<7} {saver.name:<12} {words}, ended {ended:6.2f} s")
    return samples
