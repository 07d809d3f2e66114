"""Calls of the processes of a job that do not fit together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxckpt
from jaxckpt._types import Processes
from jaxckpt.dist import ServiceKeys
from jaxckpt.ettr.records import JOURNAL_NAME
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.world import World
from scenarios.faults import meet
from scenarios.state import (
    assert_bits,
    mesh_of,
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
    found = sorted(set(os.listdir(directory)) - {JOURNAL_NAME})
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
        items = {"position": int(odd())}
        found["items"] = attempt(lambda: checkpointer.save(2, good, items=items))
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
    unsummed = jaxckpt.Options(checksum=not odd())
    found["options"] = attempt(lambda: jaxckpt.save(f"{directory}-d", good, options=unsummed))
    found["names"] = listing(directory)
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
