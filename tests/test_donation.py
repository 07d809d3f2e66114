"""The values of the call, whatever the next step does to the state, at random moments."""

from __future__ import annotations

import gc
import random
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import world_of
from held_store import HeldStore
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxckpt import Checkpointer, Options
from jaxckpt.errors import DonatedTooEarlyError
from jaxckpt.staging import Staging
from jaxckpt.testing.memory_store import MemoryStore

RUN = "/run"
OPTIONS = Options(memory_budget_bytes=64 << 20)
TIMINGS = 1000
SAVES_OF_A_RUN = 25
pytestmark = pytest.mark.timeout(120)


@jax.jit
def begin(k: jax.Array, like: Any) -> Any:
    """A state in which every element tells the step."""
    return jax.tree.map(lambda x: x * 0 + k, like)


step_on = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)


def delay(chance: random.Random) -> None:
    """None, or up to a third of a millisecond of busy time."""
    end = time.perf_counter() + chance.choice((0.0, 0.0, 1e-5, 1e-4, 3e-4)) * chance.random()
    while time.perf_counter() < end:
        pass


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


def states(mesh: Mesh, kind: str) -> Any:
    """Device arrays of one device, or sharded over eight."""
    if kind == "one device":
        return {"a": jnp.zeros((64, 64), jnp.float32), "b": jnp.zeros(10_000), "c": jnp.zeros(3)}
    specs = {"a": ("x", "y"), "b": (None, "y"), "c": ()}
    return {
        name: jax.device_put(jnp.zeros((64, 64)), NamedSharding(mesh, PartitionSpec(*spec)))
        for name, spec in specs.items()
    }


def same_everywhere(tree: Any, k: int) -> bool:
    return all((np.asarray(x) == k).all() for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["one device", "eight devices"])
def test_a_step_that_donates_the_state_changes_nothing_that_was_saved(
    mesh: Mesh, kind: str, lazy: bool
) -> None:
    chance = random.Random(f"{kind} {lazy}")
    like = states(mesh, kind)
    tree, host, k = begin(jnp.asarray(0), like), np.zeros(500), 0
    for _ in range(TIMINGS // 4 // SAVES_OF_A_RUN):
        saved: list[int] = []
        with Checkpointer(RUN, options=OPTIONS, world=world_of(MemoryStore())) as ckpt:
            for _ in range(SAVES_OF_A_RUN):
                ckpt.save(k, {"tree": tree, "host": host}, lazy=lazy)
                saved.append(k)
                host += 1  # in place, at once: the save has the values of the call
                k += 1
                delay(chance)
                if lazy:
                    ckpt.wait_staged()
                    assert ckpt.staged()
                tree = step_on(tree)
            ckpt.wait()
            assert ckpt.steps() == saved
            for step in saved:
                assert same_everywhere(ckpt.restore(step=step), step), step


@pytest.mark.parametrize("kind", ["one device", "eight devices"])
@pytest.mark.parametrize("size", ["many leaves", "large leaves"])
def test_a_donation_during_a_lazy_copy_is_told_or_does_no_harm(
    mesh: Mesh, kind: str, size: str
) -> None:
    """Never wrong bytes: what is durable has the values of the call."""
    chance = random.Random(f"{kind} {size}")
    sharding = NamedSharding(mesh, PartitionSpec("x" if kind == "eight devices" else None))
    count, shape, rounds = (200, (64,), 60) if size == "many leaves" else (6, (1 << 17,), 60)
    like = {
        f"{i:03}": jax.device_put(jnp.zeros(shape), sharding)
        if kind == "eight devices"
        else jnp.zeros(shape)
        for i in range(count)
    }
    told = 0
    store = MemoryStore()
    options = Options(memory_budget_bytes=64 << 20)
    with Checkpointer(
        RUN, options=options, world=world_of(store), journal=False, keep_last=1
    ) as ckpt:
        for k in range(rounds):
            tree = begin(jnp.asarray(k), like)
            jax.block_until_ready(tree)
            ckpt.save(k, tree, lazy=True, force=True)
            delay(chance)
            for _ in range(3):
                tree = step_on(tree)
            jax.block_until_ready(tree)
            try:
                ckpt.wait()
            except DonatedTooEarlyError as error:
                told += 1
                assert "donated" in str(error)
                assert k not in ckpt.steps()
                continue
            assert ckpt.steps()[-1] == k
            found = ckpt.restore(step=k)
            assert same_everywhere(found, k), k
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
    assert told < rounds or size == "large leaves"


def test_the_error_of_a_donation_names_the_leaf_and_comes_with_the_next_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxckpt.staging import Staging

    store = MemoryStore()
    donated = jnp.arange(1000.0)
    copy = Staging._copy_group

    def late(self: Any, group: Any) -> None:
        donated.delete()
        copy(self, group)

    with Checkpointer(RUN, options=OPTIONS, world=world_of(store), journal=False) as ckpt:
        monkeypatch.setattr(Staging, "_copy_group", late)
        ckpt.save(1, {"w": donated}, lazy=True)
        ckpt.wait_staged()
        ckpt._saves._saves[-1].done.exception(20)
        monkeypatch.setattr(Staging, "_copy_group", copy)
        with pytest.raises(DonatedTooEarlyError, match=r"'w'.*wait_staged") as caught:
            ckpt.save(2, {"w": jnp.arange(3.0)})
        assert caught.value.__notes__ == ["step 2 is being saved nevertheless"]
        ckpt.wait()
        assert ckpt.steps() == [2]


@pytest.mark.parametrize("lazy", [False, True])
def test_arrays_are_let_go_once_they_are_copied(lazy: bool) -> None:
    """While the storage is stuck with the snapshot, the devices have their memory again; but for
    the one small array that tells whether the loop donates.
    """
    store = HeldStore(MemoryStore())
    store.hold()
    with Checkpointer(RUN, options=OPTIONS, world=world_of(store), journal=False) as ckpt:
        for step in (1, 2):
            tree = {"w": jnp.full((1000, 100), step), "k": step, "n": np.full(1000, step)}
            tree["small"] = jnp.full(20_000, step)
            refs = [weakref.ref(tree["w"]), weakref.ref(tree["n"])]
            ckpt.save(step, tree, lazy=lazy)
            ckpt.wait_staged()
            del tree
            gc.collect()
            for _ in range(1000):  # of the second one views may be copied behind the call
                if refs[0]() is None:
                    break
                time.sleep(0.01)
            assert [r() for r in refs] == [None, None]
        store.let()
        ckpt.wait()
        assert ckpt.steps() == [1, 2]


def rss_bytes() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def test_memory_is_flat_over_a_thousand_small_saves(tmp_path: Path) -> None:
    options = OPTIONS
    tree = {f"{i}": jnp.full(100, i) for i in range(5)} | {"k": 0}
    with Checkpointer(tmp_path / "run", options=options, keep_last=1) as ckpt:
        resident: list[int] = []
        for k in range(1000):
            ckpt.save(k, tree | {"k": k})
            if k % 100 == 99:
                ckpt.wait()
                gc.collect()
                resident.append(rss_bytes())
                assert ckpt._pool.peak_bytes <= options.memory_budget_bytes
        assert ckpt.steps()[-1] == 999
    assert min(resident[5:]) - resident[2] < 8 << 20, resident


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_memory_is_flat_over_larger_saves_with_two_in_flight(
    mesh: Mesh, tmp_path: Path, compression: Any
) -> None:
    """With padded chunks too: the budget holds at every moment."""
    options = Options(memory_budget_bytes=48 << 20, compression=compression, chunk_bytes=1 << 20)
    rng = np.random.default_rng(0)
    sharded = NamedSharding(mesh, PartitionSpec("x"))
    tree = {
        "w": jax.device_put(rng.random((1024, 1000)), sharded),
        "odd": rng.random((1009, 301)),
        "turned": rng.random((500, 500)).T,
    }
    rounds = 60 if compression is None else 12
    with Checkpointer(tmp_path / "run", options=options, keep_last=1) as ckpt:
        resident: list[int] = []
        for k in range(rounds):
            ckpt.save(k, tree)
            assert ckpt._pool._held <= options.memory_budget_bytes
            if k % 6 == 5:
                ckpt.wait()
                gc.collect()
                resident.append(rss_bytes())
        assert ckpt._pool.peak_bytes <= options.memory_budget_bytes
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        found = ckpt.restore(tree)
        np.testing.assert_array_equal(found["odd"], tree["odd"])
        np.testing.assert_array_equal(found["w"], tree["w"])
    # The pool grows to what two snapshots want, and not beyond.
    assert min(resident[len(resident) // 2 :]) - resident[0] < 48 << 20, resident


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_loop_that_does_not_donate_is_looked_at_and_one_that_does_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int, compression: Any
) -> None:
    """Whichever it is, and whenever it changes its habit, what is saved is what was there."""
    looked: list[int] = []
    take_hold = Staging.take_hold

    def noted(self: Staging, but: int, *, views: bool) -> None:
        looked.append(but)
        take_hold(self, but, views=views)

    monkeypatch.setattr(Staging, "take_hold", noted)
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    tree: Any = {
        "large": jax.device_put(np.zeros((800, 400)), rows),
        "small": jax.device_put(np.zeros(16_000), everywhere),
        "tiny": jax.device_put(np.zeros(8), rows),
        "uneven": jax.device_put(np.zeros((101, 7)), everywhere),
        "host": np.zeros(1000),
        "count": jnp.zeros((), jnp.int32),
    }
    plain = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t))
    donating = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    options = Options(
        memory_budget_bytes=64 << 20, compression=compression, chunk_bytes=64 << 10, views=True
    )
    habits = [plain] * 4 + [donating] * 4 + [plain] * 3
    with Checkpointer(tmp_path / "run", options=options) as ckpt:
        for step, train_step in enumerate(habits):
            before = len(looked)
            ckpt.save(step, tree)
            host = tree.pop("host")
            tree = jax.block_until_ready(train_step(tree)) | {"host": host}
            host += 1  # the same array as was saved
            expected = step > 0 and habits[step - 1] is plain
            assert len(looked) - before == expected, (step, looked)
        ckpt.wait()
        assert ckpt.steps() == list(range(len(habits)))
        for step in ckpt.steps():
            found = ckpt.restore(tree, step=step)
            for name, leaf in found.items():
                np.testing.assert_array_equal(np.asarray(leaf), step, err_msg=f"{name} {step}")


def test_a_donation_before_the_first_chunk_is_cut_has_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxckpt.step_save import StepSave

    donated, start = jnp.ones((64, 64)), StepSave._start

    def late(self: Any) -> None:
        donated.delete()
        start(self)

    options = Options(memory_budget_bytes=64 << 20, chunk_bytes=4 << 10)
    with Checkpointer(RUN, options=options, world=world_of(MemoryStore()), journal=False) as ckpt:
        monkeypatch.setattr(StepSave, "_start", late)
        ckpt.save(1, {"w": donated}, lazy=True)
        with pytest.raises(DonatedTooEarlyError, match="'w'"):
            ckpt.wait()
