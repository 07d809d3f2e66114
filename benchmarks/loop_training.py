"""A training loop that saves at every step, on storage that takes several steps for one state.

The step is a real one: gradients of a small network, then an update that donates the state. It
computes on one core, as if the others were an accelerator's host: what copies and writes has the
rest, and memory's bandwidth is shared. The whole loop is timed and not the calls, since a step can
be slower for what a save still holds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks import disk
from benchmarks.loop_savers import (
    EAGER,
    LAZY,
    NONE,
    ORBAX,
    ORBAX_FREE,
    TORCH,
    Counts,
    Saver,
    Tree,
    orbax,
    ours,
    torch_dcp,
)
from benchmarks.throttle import Throttled, throttled, why_not

CASES = (NONE, EAGER, LAZY, ORBAX, ORBAX_FREE, TORCH)
_LAYERS = 4
_WARM_UP_STEPS = 2
_LEAST_STEPS = 2
_TRIALS = 3
_ORDER_SEED = 1
_ROOM_STATES = 32
"""Of the file system: what all cases keep at one time, and what is being written."""


@dataclass(frozen=True)
class Loop:
    """One timed loop; counts are of the timed steps and those before it in the same round.

    Attributes:
        steps: that were timed.
        secs: of them, saves included.
        blocked: seconds of them inside the library's calls.
        saves: calls that asked for a save.
        counts: what became of them; None without checkpoints.
    """

    case: str
    round: int
    steps: int
    secs: float
    blocked: float
    saves: int
    counts: Counts | None


@dataclass(frozen=True)
class Training:
    """All loops and what they ran on.

    Attributes:
        nbytes: of the state.
        step_secs: of a step when the batch was chosen.
        rate: of the storage in bytes a second; None where it could not be limited.
        cores: (those of the step, those of the machine).
    """

    nbytes: int
    step_secs: float
    rate: float | None
    cores: tuple[int, int]
    loops: list[Loop]
    settings: dict[str, str]
    notes: list[str]


@dataclass(frozen=True)
class Sizes:
    """How large the loop is.

    Attributes:
        nbytes: about so many of state.
        step_secs: a step takes at least so long.
        write_steps: for so many steps the storage is busy with one state.
        secs: of the timed part of a loop, at least.
        rounds: of all cases.
    """

    nbytes: float
    step_secs: float
    write_steps: float
    secs: float
    rounds: int


@contextlib.contextmanager
def compute_on_one_core() -> Generator[None]:
    """Threads that jax makes inside the block have one core for all of them."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure_training(folder: str, sizes: Sizes, say: Callable[[str], None]) -> Training:
    """All cases in all rounds, in a directory."""
    cores = len(os.sched_getaffinity(0))
    with compute_on_one_core():
        jax.config.update("jax_platforms", "cpu")
        state = jax.block_until_ready(_state(sizes.nbytes))
        step_secs, batch = _batch_for(state, sizes.step_secs)
    nbytes = sum(x.nbytes for x in state.values())
    rate, notes = nbytes / (sizes.write_steps * step_secs), list[str]()
    say(f"state {nbytes / 1e6:.0f} MB, batch {batch}, step {step_secs:.3f} s")
    with contextlib.ExitStack() as stack:
        place, storage = folder, None
        reason = why_not()
        if reason:
            notes.append(f"the loop wrote to the disk as it is, whose rate nobody limits: {reason}")
        else:
            storage = stack.enter_context(throttled(folder, _ROOM_STATES * nbytes + (64 << 20)))
            place = storage.folder
        savers = _savers(place, notes)
        for saver in savers:
            stack.callback(saver.close)
        trainer = _Trainer(state, batch, sizes, say)
        loops = trainer.rounds(savers, storage, rate)
    settings = {saver.name: saver.settings for saver in savers}
    limit = None if reason else rate
    return Training(nbytes, step_secs, limit, (1, cores), loops, settings, notes)


def _savers(folder: str, notes: list[str]) -> list[Saver]:
    makers: dict[str, Callable[[str], Saver]] = {
        EAGER: ours,
        LAZY: functools.partial(ours, lazy=True),
        ORBAX: orbax,
        ORBAX_FREE: functools.partial(orbax, kind=ORBAX_FREE),
        TORCH: torch_dcp,
    }
    savers: list[Saver] = []
    for name, make in makers.items():
        home = os.path.join(folder, name)
        os.mkdir(home)
        try:
            savers.append(make(home))
        except ImportError as error:
            notes.append(f"{name} is left out: {error}")
    return savers


class _Trainer:
    """Keeps the state from loop to loop, so that every loop has the memory of the one before."""

    def __init__(self, state: Tree, batch: int, sizes: Sizes, say: Callable[[str], None]) -> None:
        self._state, self._batch, self._sizes, self._say = state, batch, sizes, say
        self._step = 0

    def rounds(self, savers: list[Saver], storage: Throttled | None, rate: float) -> list[Loop]:
        """Without a limit once, so that all memory was used, then timed at the rate."""
        for saver in savers:
            self._train(saver, 0.0)
            saver.finish()
        if storage is not None:
            storage.set_rate(rate)
        order, loops = random.Random(_ORDER_SEED), list[Loop]()
        cases = [None, *savers]
        for number in range(self._sizes.rounds):
            loops += [self._loop(saver, number) for saver in order.sample(cases, len(cases))]
        if storage is not None:
            storage.set_rate(0)
        return loops

    def _loop(self, saver: Saver | None, number: int) -> Loop:
        disk.settle()
        before = saver and saver.counts()
        first = self._step
        for _ in range(_WARM_UP_STEPS):
            self._train_step(saver)  # the room is full afterwards, if the library has any
        steps, secs, blocked = self._train(saver, self._sizes.secs)
        counts = None
        if saver and before:
            saver.finish()
            counts = _since(before, saver.counts())
        name = saver.name if saver else NONE
        found = Loop(name, number, steps, secs, blocked, self._step - first, counts)
        self._say(f"{name:<17} {steps:3} steps in {secs:6.2f} s, {blocked:6.3f} s of it in calls")
        return found

    def _train(self, saver: Saver | None, secs: float) -> tuple[int, float, float]:
        began, steps, blocked = time.perf_counter(), 0, 0.0
        while steps < _LEAST_STEPS or time.perf_counter() - began < secs:
            blocked += self._train_step(saver)
            steps += 1
        return steps, time.perf_counter() - began, blocked

    def _train_step(self, saver: Saver | None) -> float:
        """Seconds inside the library's calls."""
        self._step += 1
        gradients = jax.block_until_ready(_gradients(self._state, self._step, self._batch))
        began = time.perf_counter()
        if saver:
            saver.ready()
        waited = time.perf_counter() - began
        self._state = jax.block_until_ready(_update(self._state, gradients))
        began = time.perf_counter()
        if saver:
            saver.save(self._step, self._state)
        return waited + time.perf_counter() - began


def _since(before: Counts, now: Counts) -> Counts:
    waited = None
    if now.waited_secs is not None and before.waited_secs is not None:
        waited = now.waited_secs - before.waited_secs
    return Counts(now.durable - before.durable, now.dropped - before.dropped, waited)


# -- the model -------------------------------------------------------------------------------------


def _state(nbytes: float) -> Tree:
    """Weights and their momentum: random numbers, square matrices."""
    side = max(8, int((nbytes / 4 / (2 * _LAYERS)) ** 0.5))
    keys = jax.random.split(jax.random.key(0), 2 * _LAYERS)
    names = [f"{kind}{layer}" for kind in ("w", "m") for layer in range(_LAYERS)]
    return {
        name: jax.random.normal(key, (side, side)) / side**0.5
        for name, key in zip(names, keys, strict=True)
    }


@functools.partial(jax.jit, static_argnames="batch")
def _gradients(state: Tree, step: jax.typing.ArrayLike, batch: int) -> Tree:
    """The state is only read: a lazy save may still be copying it."""
    inputs = jax.random.normal(jax.random.key(step), (batch, state["w0"].shape[0]))

    def loss(weights: Tree) -> jax.Array:
        x = inputs
        for layer in range(_LAYERS):
            x = jnp.tanh(x @ weights[f"w{layer}"])
        return jnp.mean((x - inputs) ** 2)

    return jax.grad(loss)({name: x for name, x in state.items() if name.startswith("w")})


@functools.partial(jax.jit, donate_argnums=0)
def _update(state: Tree, gradients: Tree) -> Tree:
    new: Tree = {}
    for layer in range(_LAYERS):
        momentum = 0.9 * state[f"m{layer}"] + gradients[f"w{layer}"]
        new[f"m{layer}"] = momentum
        new[f"w{layer}"] = state[f"w{layer}"] - 1e-3 * momentum
    return new


def _batch_for(state: Tree, secs: float) -> tuple[float, int]:
    """A batch with which the gradients take at least so long, and for how long they do."""
    batch = 16
    while True:
        jax.block_until_ready(_gradients(state, 0, batch))  # compiled here
        spent = min(_seconds(state, batch) for _ in range(_TRIALS))
        if spent >= secs:
            return spent, batch
        grown = int(batch * 1.05 * secs / spent) if spent > 0.1 * secs else 4 * batch
        batch = max(grown, batch + 1)


def _seconds(state: Tree, batch: int) -> float:
    began = time.perf_counter()
    jax.block_until_ready(_gradients(state, 0, batch))
    return time.perf_counter() - began
