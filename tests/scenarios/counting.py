"""What a save and a restore cost: bytes of the Store, and compilations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxckpt
from jaxckpt.dist import default_coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.progress import Tally
from jaxckpt.io.world import World
from jaxckpt.testing.faulty_store import FaultyStore
from scenarios.state import assert_bits, mesh_of, place

COMPILED = "/jax/core/compile/backend_compile_duration"


class CountingStore(FaultyStore):
    """Counts the bytes of data files; those of indexes and metadata are a matter of kilobytes."""

    def open(self, path: str, *, direct: bool, beneath: str = "") -> Any:
        reader = super().open(path, direct=direct, beneath=beneath)
        return reader if is_data(path) else self._inner.open(path, direct=direct, beneath=beneath)

    def create(self, path: str, *, direct: bool) -> Any:
        writer = super().create(path, direct=direct)
        if is_data(path):
            return writer
        writer.close()
        self._inner.remove_file(path)
        return self._inner.create(path, direct=direct)


def is_data(path: str) -> bool:
    folder, name = path.split("/")[-2:]
    return folder == "d" and not name.endswith("index")


def bytes_moved(directory: str) -> Any:
    """For each number of replicas R and way: bytes written and read, and those of the state."""
    out: dict[str, Any] = {}
    count = jax.process_count()
    devices = jax.device_count()
    for replicas in {2, count}:
        mesh = mesh_of([replicas, devices // replicas], "rs")
        values = state()
        held = {
            name: place(
                value, NamedSharding(mesh, P("s") if value.shape[0] % devices == 0 else P())
            )
            for name, value in values.items()
        }
        path = f"{directory}/{replicas}"
        store = CountingStore(LocalStore())
        with jaxckpt.Checkpointer(path, world=World(store, default_coordinator())) as checkpointer:
            checkpointer.save(1, held)
        found = out[str(replicas)] = {
            "state": sum(v.nbytes for v in values.values()),
            "written": store.bytes_written,
        }
        for way in ("direct", "allgather", "broadcast"):
            store = CountingStore(LocalStore())
            options = jaxckpt.Options(complete=way)
            world = World(store, default_coordinator())
            with jaxckpt.Checkpointer(path, options=options, world=world) as checkpointer:
                restored = checkpointer.restore(held)
            for name, value in values.items():
                assert_bits(restored[name], value, name)
            found[way] = store.bytes_read
    return out


def state() -> dict[str, np.ndarray]:
    """Some large arrays, many small ones, and one that no number of replicas divides."""
    rng = np.random.default_rng(0)
    shapes = [(512, 2048), (256, 1024), (1024, 512), (499_979,)] + [(64, 96)] * 80
    return {f"a{i}": rng.standard_normal(s, np.float32) for i, s in enumerate(shapes)}


class Compilations:
    """How often something was compiled since it was last asked."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, key: str, _: float, **__: Any) -> None:
        self._count += key == COMPILED

    def take(self) -> int:
        count, self._count = self._count, 0
        return count


def compilations(directory: str) -> Any:
    """Of a first and a second save, and of restores of states with few and with many leaves."""
    compiled = Compilations()
    mesh = mesh_of([2, jax.device_count() // 2], "ab")
    other = mesh_of([jax.device_count()], "x", 1)
    out: dict[str, Any] = {}
    for leaves in (10, 60):
        for way in ("allgather", "broadcast"):
            state = {}
            for i in range(leaves):
                value = np.full((64 + 4 * (i % 5), 128 * (1 + i % 2)), i, np.float32)
                state[f"leaf{i}"] = place(value, NamedSharding(mesh, P("a")))
                state[f"small{i}"] = place(value[:3], NamedSharding(mesh, P()))
            state["keys"] = jax.jit(
                lambda: jax.random.split(jax.random.key(1), 8),
                out_shardings=NamedSharding(mesh, P("a")),
            )()
            target = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(
                    x.shape, x.dtype, sharding=NamedSharding(other, P("x") if x.ndim == 1 else P())
                ),
                state,
            )
            options = jaxckpt.Options(complete=way)
            counts: dict[str, int] = {}
            with jaxckpt.Checkpointer(f"{directory}/{leaves}-{way}", options=options) as run:
                compiled.take()
                for step in (1, 2):
                    run.save(step, state)
                    run.wait()
                    counts[f"save {step}"] = compiled.take()
                for step in (1, 2):
                    run.restore(target, step)
                    counts[f"restore {step}"] = compiled.take()
            out[f"{leaves} {way}"] = counts
    return out


class Told:
    """A display that keeps what ended, in bytes."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int, int | None, bool]] = []

    def begin(self, tally: Tally) -> None:
        pass

    def end(self, tally: Tally, *, whole: bool) -> None:
        self.ended.append((tally.what.split()[0], tally.done_bytes, tally.total_bytes, whole))


def progress(directory: str) -> Any:
    """What this process's display was told of a save, and of a restore in each way."""
    told = Told()
    held = {
        name: place(value, NamedSharding(mesh_of([jax.device_count()], "r"), P()))
        for name, value in state().items()
    }
    for way in ("direct", "allgather", "broadcast"):
        options = jaxckpt.Options(complete=way, progress=True)
        world = World(LocalStore(), default_coordinator(), display=told)
        with jaxckpt.Checkpointer(directory, options=options, world=world) as checkpointer:
            if not checkpointer.steps():
                checkpointer.save(1, held)
                checkpointer.wait()
            restored = checkpointer.restore(held)
        for name, value in state().items():
            assert_bits(restored[name], value, name)
    return told.ended
