"""Jobs of many processes as threads: every call of one process fails, or it dies there."""

from __future__ import annotations

import dataclasses
import errno
import functools
from typing import Any

import jax
import numpy as np
import pytest
from conftest import world_of
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxckpt import Options
from jaxckpt.checkpointer import Checkpointer
from jaxckpt.errors import (
    JaxckptError,
    NotSharedError,
    PeerFailedError,
    PeerMissingError,
    ProcessesDisagreeError,
    StorageError,
)
from jaxckpt.io.store import Store
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore, KilledError
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.virtual_job import MemoryKeys, coordinators, run_job

RUN = "/run"
OPTIONS = Options(memory_budget_bytes=16 << 20, data_file_bytes=1 << 20, chunk_bytes=256 << 10)


@functools.cache
def state_of(seed: int) -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(seed)
    specs = {"w": ("d", "m"), "r": (None, "m"), "all": (), "odd": ()}
    shapes = {"w": (256, 512), "r": (128, 512), "all": (640, 100), "odd": (1009, 101)}
    state: dict[str, Any] = {
        name: jax.device_put(
            rng.random(shapes[name], np.float32), NamedSharding(mesh, PartitionSpec(*spec))
        )
        for name, spec in specs.items()
    }
    state |= {f"small{k}": jax.device_put(rng.random(10), state["all"].sharding) for k in range(20)}
    return state | {"host": rng.random(3000), "step": seed}


def job(stores: list[Store], work: Any, dead: Any = lambda _: None) -> list[Any]:
    """Each process has its own view of the store."""
    places = coordinators(len(stores), 8 // len(stores), dead=dead)

    def process(index: int) -> Any:
        base = world_of(stores[index])
        world = World(stores[index], places[index], base.wall_ns, random_bytes=base.random_bytes)
        ckpt = Checkpointer(RUN, options=OPTIONS, world=world, keep_last=1, journal=False)
        try:
            return work(ckpt, index)
        finally:
            ckpt._finalizer()

    return run_job(len(stores), process)


def save(step: int, seed: int) -> Any:
    def work(ckpt: Checkpointer, index: int) -> Any:
        ckpt.save(step, state_of(seed))
        ckpt.wait()
        return ckpt.steps()

    return work


def check(store: Store, seeds: dict[int, int]) -> int:
    """The newest step is whole, bit for bit; a next save leaves no litter. Returns the step."""
    with Checkpointer(
        RUN, options=OPTIONS, world=world_of(store), keep_last=1, journal=False
    ) as ckpt:
        newest = ckpt.steps()[-1]
        want = state_of(seeds[newest])
        found = ckpt.restore(jax.tree.map(lambda x: x, want))
        jax.tree.map(np.testing.assert_array_equal, found, want)
        ckpt.save(9, {"x": np.arange(3)})
    assert store.list_dir(RUN) == ["9"]
    return newest


@pytest.mark.parametrize("count", [2, 4, 8])
def test_all_processes_save_one_state(count: int) -> None:
    inner = MemoryStore()
    stores = [FaultyStore(inner) for _ in range(count)]
    assert job(stores, save(1, 1)) == [[1]] * count
    for process, store in enumerate(stores):
        written = [p for k, p in store.calls if k == "create" and "/d/" in p]
        homes = {p.split("ocdbt.process_")[1].split("/")[0] for p in written if "process_" in p}
        assert homes <= {str(process)}
    total = sum(np.asarray(x).nbytes for x in jax.tree.leaves(state_of(1)))
    assert sum(s.bytes_written for s in stores) < 1.1 * total
    assert check(inner, {1: 1}) == 1


@pytest.mark.parametrize("process", [0, 1, 3])
def test_an_error_at_any_call_of_a_process_reaches_all_and_commits_nothing(process: int) -> None:
    probe = [FaultyStore(MemoryStore()) for _ in range(4)]
    inner = probe[0]._inner
    for store in probe[1:]:
        store._inner = inner
    job(probe, save(1, 1))
    calls = len(probe[process].calls)
    assert calls > 8
    for k in range(1, calls + 1, 1 if process else 2):
        inner = MemoryStore()
        stores: list[Any] = [FaultyStore(inner) for _ in range(4)]
        job(stores, save(1, 1))
        stores[process] = FaultyStore(inner, fail_at=k, error=errno.EIO)
        ended = job(stores, save(2, 2))
        kind, path = probe[process].calls[k - 1]
        if all(isinstance(e, list) for e in ended):
            continue  # a call that save 2 does not make, or whose failure is harmless
        assert isinstance(ended[process], StorageError), (k, kind, path, ended)
        if process == 0 and all(e == [1, 2] for e in ended[1:]):
            continue  # it was committed; only the removal of the old step failed
        for other in range(4):
            if other != process:
                assert isinstance(ended[other], PeerFailedError), (k, kind, path, ended)
                assert f"process {process} failed with StorageError" in str(ended[other])
        assert check(inner.kill(), {1: 1, 2: 2}) in (1, 2)


@pytest.mark.parametrize("process", [0, 2])
def test_a_death_at_any_call_of_a_process_leaves_the_old_step_or_the_new_one(
    process: int,
) -> None:
    probe = FaultyStore(MemoryStore())
    job([probe, *(FaultyStore(probe._inner) for _ in range(3))], save(1, 1))
    for k in range(1, len(probe.calls) + 1, 3 if process else 8):
        inner = MemoryStore()
        job([FaultyStore(inner) for _ in range(4)], save(1, 1))
        stores: list[Any] = [FaultyStore(inner) for _ in range(4)]
        stores[process] = FaultyStore(inner, fail_at=k)

        def dead(index: int, store: Any = stores[process], k: int = k) -> None:
            if index == process and len(store.calls) >= k:
                raise KilledError("dead")

        ended = job(stores, save(2, 2), dead)
        if isinstance(ended[process], KilledError):
            others = [e for i, e in enumerate(ended) if i != process]
            missing = [e for e in others if isinstance(e, PeerMissingError)]
            assert missing or all(e[-1] == 2 for e in others), (k, ended)
            if process and missing:  # the primary knows; the others may only miss its word
                assert f"process {process}" in str(ended[0]), ended
        assert check(inner.kill(), {1: 1, 2: 2}) in (1, 2)


@pytest.mark.parametrize("process", [0, 1])
def test_every_sync_of_a_process_is_needed(process: int) -> None:
    """Each sync in turn is forgotten, then power is lost after the save was acknowledged."""
    probe = [FaultyStore(MemoryStore())]
    probe.append(FaultyStore(probe[0]._inner))
    job(list(probe), save(1, 1))
    syncs = [
        (i, path)
        for i, (kind, path) in enumerate(probe[process].calls, 1)
        if kind in ("sync", "sync_dir")
    ]
    assert len(syncs) >= 5
    for number, path in [(0, ""), *syncs]:
        inner = MemoryStore()
        stores: list[Any] = [FaultyStore(inner), FaultyStore(inner)]
        stores[process] = FaultyStore(inner, skip=frozenset({number}))
        assert job(stores, save(1, 1)) == [[1]] * 2
        assert survives(inner.crash()) == (number == 0), f"without {number}, {path}"


def survives(store: Store) -> bool:
    """Whether step 1 is there, whole down to the databases that only other readers use."""
    try:
        with Checkpointer(RUN, options=OPTIONS, world=world_of(store)) as ckpt:
            found = ckpt.restore(dict(state_of(1)), step=1) if ckpt.steps() == [1] else None
    except JaxckptError:
        return False
    return found is not None and all(np.array_equal(found[k], v) for k, v in state_of(1).items())


def disagree(change: Any) -> list[Any]:
    inner = MemoryStore()

    def work(ckpt: Checkpointer, index: int) -> Any:
        ckpt.save(1, state_of(1))
        ckpt.wait()
        change(ckpt, index)
        ckpt.wait()

    ended = job([FaultyStore(inner) for _ in range(4)], work)
    assert check(inner.kill(), {1: 1}) == 1
    return ended


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("leaf 'extra' is on process 2 and not on process 0", lambda s: {**s, "extra": 1}),
        (
            "leaf 'host' is on process 0 and not on process 2",
            lambda s: {k: s[k] for k in s if k != "host"},
        ),
        (
            "float32[128, 512] on process 0, int32[128, 512]",
            lambda s: {**s, "r": s["r"].astype(int).astype(np.int32)},
        ),
        ("leaf 'host' has value crc32c", lambda s: {**s, "host": s["host"] + 1}),
        ("leaf 'step' has value 2 on process 0, 3 on process 2", lambda s: {**s, "step": 3}),
        (
            "leaf 'all' has sharding",
            lambda s: {**s, "all": jax.device_put(s["all"], s["r"].sharding)},
        ),
    ],
)
def test_states_that_differ_are_refused_by_name(what: str, change: Any) -> None:
    def other(ckpt: Checkpointer, index: int) -> None:
        state = state_of(2)
        ckpt.save(2, change(state) if index == 2 else state)

    for error in disagree(other):
        assert isinstance(error, ProcessesDisagreeError), error
        assert what in str(error)


def test_calls_that_differ_are_refused_by_name() -> None:
    for error in disagree(lambda ckpt, i: ckpt.save(5 if i == 3 else 2, state_of(2))):
        assert isinstance(error, ProcessesDisagreeError)
        assert "process 3 is at" in str(error)
        assert "save of step 5" in str(error)


def test_a_call_that_one_process_does_not_make_ends() -> None:
    def work(ckpt: Checkpointer, index: int) -> None:
        if index != 1:
            ckpt.save(2, state_of(2))

    ended = disagree(work)
    assert ended[1] is None
    for i in (0, 2, 3):
        assert isinstance(ended[i], PeerMissingError), ended
        assert "process 1 has not begun it" in str(ended[i])


def test_a_leaf_that_one_process_can_not_save_stops_all() -> None:
    ended = disagree(lambda ckpt, i: ckpt.save(2, {"x": object()} if i == 1 else {"x": 1}))
    for i in (0, 2, 3):
        assert isinstance(ended[i], PeerFailedError)
        assert "process 1 failed with UnsupportedLeafError: leaf 'x'" in str(ended[i])


def test_a_directory_that_is_not_shared_is_refused() -> None:
    inner = MemoryStore()
    stores = [
        FaultyStore(inner),
        FaultyStore(inner),
        FaultyStore(MemoryStore()),
        FaultyStore(inner),
    ]
    for error in job(stores, save(1, 1)):
        assert isinstance(error, NotSharedError)
        assert "process 2 does not see" in str(error)


def test_options_that_differ_are_refused() -> None:
    """Chunks of two forms in one checkpoint could not be read."""
    inner = MemoryStore()
    places = coordinators(2, 4)

    def process(index: int) -> Any:
        base = world_of(inner)
        world = World(inner, places[index], base.wall_ns, random_bytes=base.random_bytes)
        options = dataclasses.replace(OPTIONS, compression="zstd" if index else None)
        ckpt = Checkpointer(RUN, options=options, world=world, journal=False)
        try:
            ckpt.save(1, state_of(1))
        finally:
            ckpt._finalizer()

    for error in run_job(2, process):
        assert isinstance(error, ProcessesDisagreeError)
        assert "compression=None on process 0, checksum=True, compression=zstd" in str(error)
    assert inner.list_dir(RUN) == []


def test_items_that_differ_are_refused() -> None:
    for error in disagree(lambda ckpt, i: ckpt.save(2, state_of(2), items={"data": {"at": i}})):
        assert isinstance(error, ProcessesDisagreeError)
        assert "(the item 'data')" in str(error)


def test_an_error_of_one_process_leaves_the_job_in_step() -> None:
    """It is raised by the same call on all, so the next save works."""
    inner = MemoryStore()
    stores: list[Any] = [FaultyStore(inner) for _ in range(4)]

    class Blind(FaultyStore):
        blind = False

        def stat(self, path: str) -> Any:
            return None if self.blind and "jaxckpt-tmp" in path else super().stat(path)

    stores[2] = Blind(inner)

    def work(ckpt: Checkpointer, index: int) -> Any:
        ended: list[str] = []
        for step in (1, 2, 3, 4):
            if index == 2:
                stores[2].blind = step == 2
            try:
                ckpt.save(step, state_of(step))
                ckpt.wait()
                ended.append("saved")
            except JaxckptError as error:
                ended.append(type(error).__name__)
        return ended

    assert job(stores, work) == [["saved", "NotSharedError", "saved", "saved"]] * 4


def test_a_slow_save_outlasts_many_other_operations() -> None:
    keys = MemoryKeys(hurry=1.0)
    places = coordinators(2, 4, keys)

    def process(index: int) -> Any:
        slow = places[index].operation("slow")
        slow.meet("begun")
        for _ in range(100):
            places[index].operation("quick").meet("x")
        if index:
            slow.meet("written", b"from 1")
            return b""
        return slow.meet("written", b"from 0", lambda told: told[1])

    assert run_job(2, process)[0] == b"from 1"
    assert len(keys.keys()) < 200  # those of the many others are gone by now


def test_old_words_are_forgotten() -> None:
    keys = MemoryKeys()
    places = coordinators(2, 4, keys)
    counts = []
    for _ in range(60):
        run_job(2, lambda i: places[i].operation("x").meet("y", b"z"))
        counts.append(len(keys.keys()))
    assert max(counts) == counts[40]


def test_an_error_is_a_jaxckpt_error_on_every_process() -> None:
    assert issubclass(PeerFailedError, JaxckptError)
