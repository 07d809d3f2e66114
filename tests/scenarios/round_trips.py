"""Saves and restores that must give every bit back."""

from __future__ import annotations

import time
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxckpt
from jaxckpt import sharing
from jaxckpt.layout import gather_plan
from scenarios.state import (
    assert_bits,
    assert_state,
    mesh_of,
    place,
    state_of,
    target_of,
    values,
)


def grid(directory: str, cases: list[dict[str, Any]]) -> list[float]:
    """Each case: save on one mesh, restore on another; returns the seconds of each."""
    took: list[float] = []
    for number, case in enumerate(cases, 1):
        start = time.monotonic()
        path = f"{directory}/{number}"
        saved = state_of(number, mesh_of(*case["mesh"]), case["specs"])
        jaxckpt.save(path, saved, options=jaxckpt.Options(**case.get("save", {})))
        target = target_of(mesh_of(*case["to"]), case["to_specs"])
        options = jaxckpt.Options(**case.get("restore", {}))
        assert_state(number, jaxckpt.restore(path, target, options=options), case)
        took.append(round(time.monotonic() - start, 2))
    return took


def save(path: str, seed: int, mesh: list[Any], specs: list[Any]) -> None:
    jaxckpt.save(path, state_of(seed, mesh_of(*mesh), specs))


def restore(path: str, seed: int, mesh: list[Any], specs: list[Any], complete: list[str]) -> None:
    target = target_of(mesh_of(*mesh), specs)
    for way in complete:
        found = jaxckpt.restore(path, target, options=jaxckpt.Options(complete=way))
        assert_state(seed, found, way)


def lenient(directory: str) -> None:
    """Restores that change dtypes, have no target, or take parts of the tree."""
    mesh = mesh_of([2, jax.device_count() // 2], "ab", 3)
    saved = state_of(7, mesh, [["a", "b"], [], ["b"]])
    jaxckpt.save(f"{directory}/c", saved)

    plain = jaxckpt.restore(f"{directory}/c")
    for name, value in values(7).items():
        assert isinstance(plain[name], np.ndarray)
        assert_bits(plain[name], value, name)
    assert plain["values"]["name"] == "run 7 é"

    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((64, 96)).astype(np.float32)
    whole = rng.integers(-100, 100, (6000,), np.int32)
    state = {
        "a": place(numbers, NamedSharding(mesh, P("a"))),
        "b": place(whole, NamedSharding(mesh, P())),
        "c": 3,
    }
    with jaxckpt.Checkpointer(f"{directory}/run") as checkpointer:
        checkpointer.save(1, state, items={"data": {"position": [1, 2]}})
        replicated = NamedSharding(mesh, P())
        target = {
            "a": jax.ShapeDtypeStruct(numbers.shape, ml_dtypes.bfloat16, sharding=replicated),
            "b": jax.ShapeDtypeStruct(whole.shape, np.float32, sharding=replicated),
            "c": jax.ShapeDtypeStruct((), np.float32, sharding=replicated),
        }
        found = checkpointer.restore(target, cast=True)
        assert_bits(found["a"], numbers.astype(ml_dtypes.bfloat16), "cast a")
        assert_bits(found["b"], whole.astype(np.float32), "cast b")
        assert_bits(found["c"], np.array(3, np.float32), "cast c")
        part = {"b": target["b"], "new": 5}
        found = checkpointer.restore(part, cast=True, allow_missing=True, allow_extra=True)
        assert sorted(found) == ["b", "new"]
        assert found["new"] == 5
        assert checkpointer.restore_item("data", 1) == {"position": [1, 2]}

    # Every process may have it on a device of its own.
    own = SingleDeviceSharding(jax.local_devices()[0])
    alone = jaxckpt.restore(
        f"{directory}/run/1",
        {"a": jax.ShapeDtypeStruct(numbers.shape, np.float32, sharding=own)},
        allow_extra=True,
    )
    assert_bits(alone["a"], numbers, "own device")
    assert alone["a"].sharding == own


def trial(directory: str) -> list[str]:
    """`auto` with a trial, on a state that is small for one; it goes both ways."""
    whole, parts = [
        NamedSharding(mesh_of([2, jax.device_count() // 2], "ab"), spec) for spec in (P(), P("b"))
    ]
    rng = np.random.default_rng(0)
    values = {f"w{i}": rng.integers(0, 256, (64, 4096), np.uint8) for i in range(40)}
    state = {n: place(v, parts if int(n[1:]) % 2 else whole) for n, v in values.items()}
    jaxckpt.save(f"{directory}/c", state)
    gather_plan._SAMPLE_BYTES = (4096, 64 << 10)
    real, taken = sharing.choose, list[str]()
    for way in ("direct", "allgather", None):

        def choose(rates: Any, way: str | None = way) -> Any:
            taken.append(way or real(rates))
            assert sum(rate is not None for rate in rates) >= 2
            return taken[-1]

        sharing.choose = choose
        options = jaxckpt.Options(gather_bytes=1 << 20)
        found = jaxckpt.restore(f"{directory}/c", state, options=options)
        for name, value in values.items():
            assert_bits(found[name], value, f"{way} {name}")
    return taken
