"""Directories that are not shared, are shared with another job, or hold damaged files."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

import jaxckpt
from jaxckpt.dist import default_coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.world import World
from jaxckpt.staging import Staging
from jaxckpt.testing.faulty_store import FaultyStore
from scenarios.bad_input import attempt, listing, odd, small
from scenarios.faults import before, meet
from scenarios.state import assert_arrays, mesh_of, orbax_state, orbax_target, raised


class Elsewhere(FaultyStore):
    """Another host's disk, at the same path."""

    def __init__(self, path: str, other: str) -> None:
        super().__init__(LocalStore())
        self._path, self._other = path, other
        for name in ("create", "make_dir", "list_dir", "stat", "sync_dir", "lock"):
            call = getattr(self._inner, name)
            setattr(self, name, lambda p, call=call, **more: call(self._moved(p), **more))

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Any:
        return self._inner.open(self._moved(path), direct=direct, beneath=self._moved(beneath))

    def _moved(self, path: str) -> str:
        return path.replace(self._path, self._other, 1)


def not_shared(directory: str) -> Any:
    mesh = mesh_of([jax.device_count()], "x")
    state = {"w": small(mesh), "b": small(mesh, P())}
    run, other = f"{directory}/run", f"{directory}/elsewhere"
    store = Elsewhere(run, other) if odd() else LocalStore()
    world = World(store, default_coordinator())
    out: dict[str, Any] = {}
    if odd():
        os.makedirs(directory, exist_ok=True)
    meet()
    out["opening"] = attempt(lambda: jaxckpt.Checkpointer(run, world=world))
    if odd():
        os.makedirs(other)
    meet()
    with jaxckpt.Checkpointer(run, world=world) as checkpointer:

        def save(step: int) -> None:
            checkpointer.save(step, state)
            checkpointer.wait()

        out["saving"] = attempt(lambda: save(1))
        out["left"] = listing(run)
    for place_ in (run, other):
        with jaxckpt.Checkpointer(place_) as checkpointer:
            checkpointer.save(1, state)
    meet()
    with jaxckpt.Checkpointer(run, world=world) as checkpointer:
        out["restoring"] = attempt(lambda: checkpointer.restore(state))
        out["going on"] = attempt(lambda: checkpointer.restore_or(state))
        out["saving again"] = attempt(lambda: save(2))
    with jaxckpt.Checkpointer(run) as checkpointer:
        checkpointer.save(2, state)
        checkpointer.wait()
        checkpointer.restore(state)
    out["names"] = listing(run)
    return out


def race(directory: str, seed: int, steps: int) -> list[str]:
    """Saves into a directory where another job does the same at the same time."""
    mesh = mesh_of([jax.device_count()], "x")
    here, there = (Path(f"{directory}-{s}") for s in (seed, 300 - seed))
    if jax.process_index() == 0:
        here.touch()
        while not there.exists():
            time.sleep(0.01)
    meet()
    found: list[str] = []
    with jaxckpt.Checkpointer(directory) as checkpointer:
        for step in range(1, steps + 1):
            out: dict[str, Any] = {}
            if (step + seed // 100) % 2:
                before(Staging, "finish", lambda: time.sleep(0.2))
            with raised(out):
                checkpointer.save(step, orbax_state(seed, mesh, [["x"], []]))
                checkpointer.wait()
            found.append(out.get("error", "saved"))
            if step == steps // 2:  # a restart beside a job that saves must not clean up after it
                with jaxckpt.Checkpointer(directory) as again:
                    again.steps()
    return found


def who_won(directory: str, seeds: list[int]) -> None:
    target = orbax_target(mesh_of([jax.device_count()], "x"), [[]])
    with jaxckpt.Checkpointer(directory) as checkpointer:
        assert checkpointer.steps() == list(range(1, len(seeds) + 1))
        for step, seed in enumerate(seeds, 1):
            assert_arrays(seed, checkpointer.restore(target, step), step)
        assert listing(directory) == [str(s) for s in range(1, len(seeds) + 1)]


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a flipped bit of process 0": ("ocdbt.process_0/d/data-00000", flip),
    "a flipped bit of process 1": ("ocdbt.process_1/d/data-00000", flip),
    "a data file that ends early": ("ocdbt.process_1/d/data-00000", truncate),
    "a data file that is gone": ("ocdbt.process_1/d/data-00000", Path.unlink),
    "an index that ends early": ("d/index", truncate),
    "a flipped bit of the index": ("d/index", flip),
    "a flipped bit of the manifest": ("manifest.ocdbt", flip),
    "a manifest that is gone": ("ocdbt.process_1/manifest.ocdbt", Path.unlink),
}


def damaged(directory: str) -> Any:
    """The newest step is damaged in each way: refused by all, and passed over by all alike."""
    on, other = mesh_of([jax.device_count()], "x"), mesh_of([jax.device_count()], "x", 1)
    state, specs = orbax_state(1, on, [["x"], []]), [[], ["x"]]
    out: dict[str, Any] = {}
    for number, (name, (file, harm)) in enumerate(DAMAGES.items()):
        run = f"{directory}/{number}"
        with jaxckpt.Checkpointer(run) as checkpointer:
            checkpointer.save(1, state)
            checkpointer.save(2, state)
        if jax.process_index() == 0:
            harm(Path(run) / "2" / "default" / file)
        meet()
        out[name] = []
        ways = ["allgather", "direct", "broadcast"] if "bit of process" in name else ["allgather"]
        for way in ways:
            options = jaxckpt.Options(complete=way, check_gathered=way == "allgather")
            with jaxckpt.Checkpointer(run, options=options) as checkpointer:
                target = orbax_target(other, specs)
                found = attempt(lambda t=target, c=checkpointer: c.restore(t, 2))
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    restored, step = checkpointer.restore_or(orbax_state(0, other, specs))
                kinds = [w.category.__name__ for w in told]
                assert "DamagedStepWarning" in kinds, (name, way, kinds)
                assert step == 1, (name, way)
                assert_arrays(1, restored, (name, way))
                out[name].append(found)
    return out
