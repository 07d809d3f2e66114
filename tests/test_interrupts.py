"""Ctrl-C, many files, many savers, no memory: no hang, nothing lost, nothing given back too early."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import steps_in, world_of

import jaxckpt
from jaxckpt import Checkpointer, Options
from jaxckpt.io import datafiles, engine, pool
from jaxckpt.io.engine import Engine
from jaxckpt.testing.faulty_store import FaultyStore
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.strategies import assert_same

SMALL = Options(memory_budget_bytes=16 << 20, chunk_bytes=256 << 10)


def big(seed: int = 0, count: int = 24) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"{k:03}": rng.random(100_000) for k in range(count)}


@pytest.mark.timeout(60)
def test_an_interrupt_waits_for_copies_that_are_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt arrives in the wait for the copies; the next save uses the same memory."""
    put = datafiles.StreamedFiles.put
    running: set[int] = set()

    def slow_put(self: Any, place: Any, value: Any) -> int:
        running.add(id(place))
        time.sleep(0.02)
        try:
            return put(self, place, value)
        finally:
            running.discard(id(place))

    monkeypatch.setattr(datafiles.StreamedFiles, "put", slow_put)
    waits = iter([KeyboardInterrupt, KeyboardInterrupt])
    real_wait = sys.modules["jaxckpt.io.waiting"].wait

    def interrupted_wait(futures: Any, timeout: float | None) -> Any:
        for error in waits:
            raise error
        return real_wait(futures, timeout)

    with Checkpointer(tmp_path / "run", options=SMALL) as ckpt:
        monkeypatch.setattr("jaxckpt.io.waiting.wait", interrupted_wait)
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(1, big(1))
        assert not running
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        ckpt.save(2, big(2))
        ckpt.wait()
        assert ckpt.steps() == [2]
        assert_same(big(2), ckpt.restore(big(2)))
    assert steps_in(tmp_path / "run") == ["2"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_more_data_files_than_blocks(tmp_path: Path, compression: Any) -> None:
    options = Options(
        memory_budget_bytes=16 << 20, data_file_bytes=1 << 20, compression=compression
    )
    state = big(count=100)
    jaxckpt.save(tmp_path / "c", state, options=options)
    files = list((tmp_path / "c/ocdbt.process_0/d").iterdir())
    assert len(files) > 32
    assert all(f.stat().st_size % 4096 == 0 for f in files if f.name.startswith("data"))
    assert_same(state, jaxckpt.restore(tmp_path / "c", state))


@pytest.mark.timeout(60)
def test_saves_at_the_same_time_do_not_wait_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.os, "cpu_count", lambda: 8)
    states = [big(k) for k in range(6)]
    threads = [
        threading.Thread(
            target=jaxckpt.save, args=(tmp_path / str(k), s), kwargs={"options": SMALL}
        )
        for k, s in enumerate(states)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, s in enumerate(states):
        assert_same(s, jaxckpt.restore(tmp_path / str(k), s))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("at", [1, 3])
def test_no_memory_is_an_error_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    real, calls = pool.aligned_memory, iter(range(1, 10_000))

    def failing(nbytes: int) -> Any:
        if next(calls) == at:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(nbytes)

    monkeypatch.setattr(pool, "aligned_memory", failing)
    mixed = big() | {f"s{k}": np.arange(1000.0) for k in range(300)}
    with Checkpointer(tmp_path / "run", options=SMALL) as ckpt:
        with pytest.raises(jaxckpt.StorageError, match="Lower memory_budget_bytes"):
            ckpt.save(1, mixed)
        ckpt.save(2, mixed)
        assert_same(mixed, ckpt.restore(mixed))


def test_a_write_error_ends_copies_that_wait_for_memory() -> None:
    store = FaultyStore(
        MemoryStore(), counted=frozenset({"write"}), fail_at=1, error=errno.EIO, sticky=True
    )
    ckpt = Checkpointer("/run", options=SMALL, world=world_of(store))
    with pytest.raises(jaxckpt.StorageError, match="EIO"):
        ckpt.save(1, big(count=80))
    ckpt.close()


def test_a_failed_save_that_nobody_waits_for_is_told_at_exit(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, jaxckpt\n"
        "from jaxckpt.io.local import LocalWriter\n"
        "def fail(self): raise OSError(5, 'Input/output error')\n"
        "LocalWriter.sync = fail\n"
        "ckpt = jaxckpt.Checkpointer(sys.argv[1])\n"
        "ckpt.save(1, {'a': np.arange(3)})\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "a save to" in done.stderr
    assert "Input/output error" in done.stderr


def test_a_checkpointer_without_a_name_ends_quietly(tmp_path: Path) -> None:
    code = (
        "import sys, time, threading, numpy as np, jaxckpt\n"
        "jaxckpt.Checkpointer(sys.argv[1]).save(1, {'a': np.arange(3_000_000)})\n"
        "time.sleep(1)\n"
        "assert not [t for t in threading.enumerate() if 'jaxckpt' in t.name]\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.steps() == [1]


def test_engines_end_their_threads() -> None:
    made = Engine(1)
    job = made.job()
    job.join([job.copy(lambda: None), job.write(lambda: None), job.read(lambda: None)])
    made.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxckpt")]


@pytest.mark.timeout(60)
def test_an_interrupt_while_the_thread_of_a_save_begins_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller hears of it though the thread runs already."""
    start, begun = threading.Thread.start, threading.Event()

    def interrupted(self: threading.Thread) -> None:
        start(self)
        if self.name == "jaxckpt-save-1":
            assert begun.wait(20)
            raise KeyboardInterrupt

    from jaxckpt.in_flight import InFlight

    turn = InFlight.wait_for_turn

    def later(self: Any, snapshot: Any, look: Any) -> bool:
        begun.set()
        while snapshot.step == 1:
            look()  # raises once the caller has given up
            time.sleep(0.01)
        return turn(self, snapshot, look)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(InFlight, "wait_for_turn", later)
    with Checkpointer("/run", options=SMALL, world=world_of(MemoryStore())) as ckpt:
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(1, big(1))
        assert not [t for t in threading.enumerate() if t.name == "jaxckpt-save-1"]
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        ckpt.save(2, big(2))
        ckpt.wait()
        assert ckpt.steps() == [2]


@pytest.mark.timeout(60)
def test_an_interrupt_between_the_copy_and_the_thread_gives_the_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxckpt.step_save import StepSave

    def interrupted(_: StepSave) -> None:
        raise KeyboardInterrupt

    with Checkpointer("/run", options=SMALL, world=world_of(MemoryStore())) as ckpt:
        with monkeypatch.context() as patch:
            patch.setattr(StepSave, "_start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ckpt.save(1, big(1, count=8))
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
        ckpt.save(1, big(2, count=8))


@pytest.mark.timeout(60)
def test_a_checkpointer_that_is_collected_on_a_thread_of_its_own_ends_all_the_same() -> None:
    """A trainer in a cycle goes when the collector comes, on whatever thread that is."""

    class Collecting(FaultyStore):
        def make_dir(self, path: str) -> None:
            if "-tmp-" in path:
                assert dropped.wait(20)
                gc.collect()
            super().make_dir(path)

    dropped, store = threading.Event(), Collecting(MemoryStore())

    def forget() -> None:
        trainer: dict[str, Any] = {}
        trainer["me"] = trainer
        trainer["ckpt"] = Checkpointer(
            "/run", options=SMALL, world=world_of(store), grace_secs=None
        )
        for step in (1, 2):
            trainer["ckpt"].save(step, {"w": np.arange(100_000)})

    forget()
    dropped.set()
    for thread in threading.enumerate():
        if thread.name.startswith(("jaxckpt-save", "jaxckpt-end")):
            thread.join(20)
            assert not thread.is_alive()
    with Checkpointer("/run", options=SMALL, world=world_of(store)) as ckpt:
        assert ckpt.steps() == [1, 2]
