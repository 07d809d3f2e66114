"""Processes that die, are slow, or can not write."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax

import jaxckpt
from jaxckpt import completing, merging, replanning, restoring, saving, step_place, step_save
from jaxckpt.dist import default_coordinator
from jaxckpt.errors import StorageError
from jaxckpt.ettr.records import JOURNAL_NAME
from jaxckpt.io import stripe_reader
from jaxckpt.io.held import HeldFiles
from jaxckpt.io.local import LocalStore, LocalWriter
from jaxckpt.io.world import World
from jaxckpt.staging import Staging
from jaxckpt.testing.faulty_store import FaultyStore
from scenarios.state import assert_arrays, mesh_of, orbax_state, orbax_target, raised

SPECS: list[Any] = [["x"], [], [None, "x"]]


def state(seed: int) -> dict[str, Any]:
    return orbax_state(seed, mesh_of([jax.device_count()], "x"), SPECS)


def replicated() -> dict[str, Any]:
    return orbax_target(mesh_of([jax.device_count()], "x", 1), [[]])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


# -- where to interfere ----------------------------------------------------------------------------


def before(owner: Any, name: str, act: Callable[[], None], times: int = 1) -> None:
    """Acts in front of the n-th call of a function."""
    original, left = getattr(owner, name), [times]

    def hooked(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act()
        return original(*args, **kwargs)

    setattr(owner, name, hooked)


def after(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Acts behind the first call of a function."""
    original = getattr(owner, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act()
        return result

    setattr(owner, name, hooked)


IN_SAVE: dict[str, Callable[[Callable[[], None]], None]] = {
    "planning": lambda act: before(replanning.Planner, "plan", act),
    "agreed": lambda act: after(step_save, "agree", act),
    "copying": lambda act: before(HeldFiles, "copy", act, 2),
    "writing": lambda act: after(LocalWriter, "write_at", act),
    "synced": lambda act: after(Staging, "finish", act),
    "announced": lambda act: before(merging, "build_tree", act),
    "merging": lambda act: before(merging, "check_files", act),
    "before the rename": lambda act: before(step_place, "publish", act),
    "after the rename": lambda act: after(LocalStore, "rename", act),
}
IN_RESTORE: dict[str, Callable[[Callable[[], None]], None]] = {
    "matching": lambda act: before(restoring, "match_target", act),
    "before the barrier": lambda act: before(completing.Completion, "compile", act),
    "reading": lambda act: before(stripe_reader.StripeReader, "_check", act, 3),
    "between buckets": lambda act: before(completing.Completion, "_hand_on", act, 3),
    "the last meeting": lambda act: before(restoring, "build_result", act, 5),
}


# -- scenarios -------------------------------------------------------------------------------------


def killed(directory: str, phase: str, process: int) -> Any:
    """Saves step 1, then a process dies while step 2 is saved, or while it is restored."""
    out: dict[str, Any] = {}
    own = jax.process_index() == process
    options = jaxckpt.Options(complete="allgather", gather_bytes=1 << 20)
    with raised(out):
        checkpointer = jaxckpt.Checkpointer(directory, options=options)
        checkpointer.save(1, state(1))
        checkpointer.wait()
        if phase == "announced":  # the others wait for the primary, which takes its time
            if jax.process_index() == 0:
                before(merging, "build_tree", lambda: time.sleep(3))
            elif own:
                after(saving.StagedItem, "_write_database", lambda: later(die, 1))
        elif own:
            {**IN_SAVE, **IN_RESTORE}[phase](die)
        if phase in IN_SAVE:
            checkpointer.save(2, state(2))
            checkpointer.wait()
        else:
            checkpointer.restore(replicated())
    print("RESULT", json.dumps(out), flush=True)
    os._exit(0)


def later(act: Callable[[], None], secs: float) -> None:
    threading.Timer(secs, act).start()


def resumed(runs: dict[str, int | None]) -> None:
    """Each run goes on from its last good step; nothing of the killed job is left in it."""
    for directory, newest in runs.items():
        with jaxckpt.Checkpointer(directory) as checkpointer:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found, step = checkpointer.restore_or(state(0))
            assert step in ((newest,) if newest else (1, 2)), (directory, step)
            assert_arrays(step, found, directory)
            checkpointer.save(step + 1, state(step + 1))
            checkpointer.wait()
            assert checkpointer.latest_step() == step + 1, directory
            found = checkpointer.restore(replicated())
            assert_arrays(step + 1, found, directory)
            names = sorted(set(os.listdir(directory)) - {JOURNAL_NAME})
            assert names == [str(s) for s in range(1, step + 2)], (directory, names)
    meet()


def meet() -> None:
    default_coordinator().operation("a meeting of the test").meet("here")


def slow(directory: str) -> Any:
    """A process that takes its time holds the others up, and no more."""
    own = jax.process_index() == 1
    out: dict[str, Any] = {}
    with jaxckpt.Checkpointer(directory) as checkpointer:
        for step, phase in enumerate(("copying", "writing"), 1):
            if own:
                IN_SAVE[phase](lambda: time.sleep(1.2))
            checkpointer.save(step, state(step))
            checkpointer.wait()
            assert checkpointer.latest_step() == step
    for name, secs in (("patient", 20.0), ("impatient", 0.5)):
        out[name] = {}
        options = jaxckpt.Options(complete="allgather", barrier_secs=secs)
        with jaxckpt.Checkpointer(directory, options=options) as checkpointer:
            if own:
                IN_RESTORE["before the barrier"](lambda: time.sleep(1.8))
            start = time.monotonic()
            with raised(out[name]):
                assert_arrays(2, checkpointer.restore(replicated()))
            out[name]["secs"] = time.monotonic() - start
    with jaxckpt.Checkpointer(directory) as checkpointer:  # and all is well again
        assert_arrays(2, checkpointer.restore(replicated()))
    return out


class BadDisk(FaultyStore):
    """Refuses one kind of call on paths that hold a text."""

    def __init__(self, kind: str, part: str, number: int) -> None:
        super().__init__(LocalStore())
        self._kind, self._part, self._number = kind, part, number

    def do(self, kind: str, path: str, call: Callable[[], Any], skipped: Any = None) -> Any:
        if kind == self._kind and self._part in path:
            raise StorageError(kind, path, OSError(self._number, os.strerror(self._number)))
        return call()


def unwritable(directory: str, cases: list[Any]) -> Any:
    """In each case the disk of one process refuses something; the next save works."""
    found: list[dict[str, Any]] = []
    with jaxckpt.Checkpointer(directory) as checkpointer:
        checkpointer.save(1, state(1))
    for process, kind, part, number in cases:
        out: dict[str, Any] = {}
        bad = jax.process_index() == process
        store = BadDisk(kind, part, number) if bad else LocalStore()
        world = World(store, default_coordinator())
        start = time.monotonic()
        with jaxckpt.Checkpointer(directory, world=world) as checkpointer:
            with raised(out):
                checkpointer.save(2, state(2))
                checkpointer.wait()
        out["secs"] = time.monotonic() - start
        meet()
        out["names"] = sorted(set(os.listdir(directory)) - {JOURNAL_NAME})
        meet()
        found.append(out)
    with jaxckpt.Checkpointer(directory) as checkpointer:
        checkpointer.save(2, state(2))
    meet()
    with jaxckpt.Checkpointer(directory) as checkpointer:
        assert_arrays(2, checkpointer.restore(replicated()))
        assert_arrays(1, checkpointer.restore(replicated(), 1))
    return found


# -- several snapshots in flight -------------------------------------------------------------------


def killed_in_flight(directory: str, process: int) -> None:
    """A process dies while one snapshot is written slowly and another one waits."""
    checkpointer = jaxckpt.Checkpointer(directory)
    checkpointer.save(1, state(1))
    checkpointer.wait()
    gate = threading.Event()
    before(LocalWriter, "write_at", lambda: gate.wait(60))
    checkpointer.save(2, state(2))
    checkpointer.save(3, state(3))
    assert checkpointer.steps() == [1]
    meet()
    if jax.process_index() == process:
        die()
    time.sleep(60)


def preempted(directory: str, process: int) -> Any:
    """One process gets the notice; all save the same step and stop."""
    told: dict[str, Any] = {}
    with jaxckpt.Checkpointer(directory, save_every=1000) as checkpointer:
        for step in range(1, 400):
            if step == 5 and jax.process_index() == process:
                os.kill(os.getpid(), signal.SIGTERM)
            saved = checkpointer.save(step, state(step))
            assert saved == checkpointer.should_stop
            if saved:
                told["step"] = step
                told["steps"] = checkpointer.steps()
                break
            meet()
            time.sleep(0.02)
    return told
