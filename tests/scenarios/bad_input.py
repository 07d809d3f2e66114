"""Calls that do not fit together, directories that are not shared, damaged files."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxckpt
from jaxckpt._types import Processes
from jaxckpt.dist import ServiceKeys, default_coordinator
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore
from scenarios.faults import before, meet
from scenarios.state import (
    assert_arrays,
    assert_bits,
    mesh_of,
    orbax_state,
    orbax_target,
    place,
    raised,
)


def odd() -> bool:
    """The process that does it otherwise."""
    return jax.process_index() == jax.process_count() - 1


def small(mesh: Any = None, spec: Any = None, shape: tuple[int, ...] = (64, 128)) -> jax.Array:
    sharding = NamedSharding(mesh or mesh_of([jax.device_count()], "x"), spec or P("x"))
    return place(np.ones(shape, np.float32), sharding)


def attempt(call: Callable[[], Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    start = time.monotonic()
    with raised(out):
        call()
    out["secs"] = time.monotonic() - start
    meet()
    return out


def listing(directory: str) -> list[str]:
    found = sorted(os.listdir(directory))
    meet()
    return found


# -- calls that differ -----------------------------------------------------------------------------


def different_saves(directory: str) -> Any:
    mesh = mesh_of([jax.device_count()], "x")
    good = {"w": small(mesh), "b": small(mesh, P()), "lr": 0.5, "host": np.arange(10), "n": "x"}

    def otherwise(**changes: Any) -> dict[str, Any]:
        return {**good, **changes} if odd() else good

    rotated = mesh_of([jax.device_count()], "x", 3)
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "a leaf more": lambda: otherwise(more=small(mesh)),
        "a leaf less": lambda: good if odd() else {**good, "more": small(mesh)},
        "shape": lambda: otherwise(w=small(mesh, shape=(64, 256))),
        "dtype": lambda: otherwise(w=jax.jit(lambda x: x.astype(np.int32))(good["w"])),
        "spec": lambda: otherwise(w=small(mesh, P(None, "x"))),
        "mesh": lambda: otherwise(w=small(rotated)),
        "host value": lambda: otherwise(host=np.arange(10) * 2),
        "float": lambda: otherwise(lr=0.25),
        "text": lambda: otherwise(n="y"),
        "kind": lambda: otherwise(n=5),
        "own device": lambda: otherwise(w=jax.device_put(np.ones((64, 128), np.float32))),
        "devices of one process": lambda: {**good, "w": small(mesh_of([2], "x"))},
        "no leaf": lambda: otherwise(w=object()),
    }
    # Computed apart: a compiled function must run on all processes.
    cast = jax.jit(lambda x: x.astype(np.int32))(good["w"])
    cases["dtype"] = lambda: otherwise(w=cast)
    found: dict[str, Any] = {}
    with jaxckpt.Checkpointer(directory) as checkpointer:
        checkpointer.save(1, good)
        checkpointer.wait()
        for name, make in cases.items():
            state = make()

            def save(state: Any = state) -> None:
                checkpointer.save(2, state)
                checkpointer.wait()

            found[name] = attempt(save)
        found["step"] = attempt(lambda: checkpointer.save(3 if odd() else 2, good))
        found["a step that is there"] = attempt(lambda: checkpointer.save(1, good))
        found["save and restore"] = attempt(
            lambda: checkpointer.restore(good) if odd() else checkpointer.save(2, good)
        )
        found["no such step"] = attempt(lambda: checkpointer.restore(good, 7))
        found["other step to restore"] = attempt(
            lambda: checkpointer.restore(good, 7 if odd() else 1)
        )
        assert listing(directory) == ["1"]
        assert checkpointer.save(2, good)
        checkpointer.wait()
        assert checkpointer.steps() == [1, 2]
    other = f"{directory}-{jax.process_index()}"
    found["directory"] = attempt(lambda: jaxckpt.Checkpointer(other))
    found["path"] = attempt(lambda: jaxckpt.save(f"{other}-c", good))
    found["path to restore"] = attempt(
        lambda: jaxckpt.restore(f"{directory}/{2 if odd() else 1}", good)
    )
    found["nothing to restore for one"] = attempt(
        lambda: jaxckpt.restore(f"{directory}/{5 if odd() else 1}", good)
    )
    found["items"] = listing(directory)
    return found


def different_restores(directory: str) -> Any:
    mesh = mesh_of([jax.device_count()], "x")
    good = {"w": small(mesh), "b": small(mesh, P())}
    jaxckpt.save(f"{directory}/c", good)

    def shape(sharding: Any, dtype: Any = np.float32, dims: Any = (64, 128)) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

    rows, everywhere = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    first = NamedSharding(mesh_of([2], "x"), P())
    targets = {
        "sharding": {"w": shape(everywhere if odd() else rows), "b": good["b"]},
        "kind": {"w": np.zeros((64, 128), np.float32) if odd() else shape(rows), "b": good["b"]},
        "tree": {"w": shape(rows)} if odd() else good,
        "shape": {"w": shape(rows, dims=(64, 64)) if odd() else shape(rows), "b": good["b"]},
        "devices of one process": {"w": shape(first), "b": good["b"]},
    }
    found: dict[str, Any] = {}
    for name, target in targets.items():
        for way in ("allgather", "direct"):
            options = jaxckpt.Options(complete=way)
            found[f"{name}, {way}"] = attempt(
                lambda t=target, o=options: jaxckpt.restore(f"{directory}/c", t, options=o)
            )
    found["way"] = attempt(
        lambda: jaxckpt.restore(
            f"{directory}/c",
            {"w": shape(everywhere), "b": good["b"]},
            options=jaxckpt.Options(complete="direct" if odd() else "allgather"),
        )
    )
    restored = jaxckpt.restore(f"{directory}/c", {"w": shape(everywhere), "b": good["b"]})
    assert_bits(restored["w"], np.ones((64, 128), np.float32), "after all")
    return found


def one_index_twice(directory: str) -> Any:
    keys = ServiceKeys(distributed.global_state.client)
    out: dict[str, Any] = {}
    for index in range(2):
        twice = Coordinator(Processes(index, 2 + index), keys)
        # With index 0 both are the primary; with index 1 there is none besides them.
        twice._begun = 1000 * (1 + index)
        world = World(LocalStore(), twice)
        if index == 0:
            out["0"] = attempt(lambda w=world: jaxckpt.Checkpointer(f"{directory}/run", world=w))
            continue

        def reach(coordinator: Coordinator = twice) -> None:
            with coordinator.operation("a thing") as operation:
                operation.meet("here", timeout_secs=20)

        out["1"] = attempt(reach)
    return out


# -- directories -----------------------------------------------------------------------------------


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
                from jaxckpt.io.datafiles import DataFiles

                before(DataFiles, "sync", lambda: time.sleep(0.2))
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
