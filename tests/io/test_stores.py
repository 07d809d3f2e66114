"""The contract of every Store; pools and extents; names."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxckpt._options import MIB
from jaxckpt.errors import StorageError
from jaxckpt.format.names import parse_step, parse_work_name, work_name
from jaxckpt.io.engine import Engine
from jaxckpt.io.extents import ExtentWriter, round_up
from jaxckpt.io.local import LocalStore
from jaxckpt.io.pool import HostPool, block_bytes_for
from jaxckpt.io.store import Store, join, make_dirs, name_of, parent_of, read_file, write_file
from jaxckpt.layout.placement import Placer
from jaxckpt.testing.faulty_store import FaultyStore
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.store_contract import CHECKS

STORES: dict[str, Callable[[Path], tuple[Store, str]]] = {
    "local": lambda p: (LocalStore(), str(p)),
    "tmpfs": lambda _: (LocalStore(), _shared_memory()),
    "memory": lambda _: (MemoryStore(), "/"),
    "memory without exchange": lambda _: (MemoryStore(has_exchange=False), "/"),
    "faulty, no fault": lambda _: (FaultyStore(MemoryStore()), "/"),
}
_count = itertools.count()


def _shared_memory() -> str:
    path = Path("/dev/shm") / f"jaxckpt-test-{os.getpid()}-{next(_count)}"
    path.mkdir()
    return str(path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", STORES)
def test_contract(name: str, check: Callable[[Store, str], None], tmp_path: Path) -> None:
    store, directory = STORES[name](tmp_path)
    try:
        check(store, directory)
    finally:
        if name == "tmpfs":
            import shutil

            shutil.rmtree(directory)


def test_a_link_on_the_way_is_refused_and_above_it_is_not(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "d").mkdir(parents=True)
    (real / "d/f").write_bytes(b"x")
    (tmp_path / "link").symlink_to(real)
    (real / "e").symlink_to(real / "d")
    store = LocalStore()
    assert read_file(store, f"{tmp_path}/link/d/f", 10, beneath=f"{tmp_path}/link") == b"x"
    with pytest.raises(StorageError):
        store.open(f"{real}/e/f", direct=False, beneath=str(real))


def test_a_stale_lock_file_is_taken_over_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "x.lease")
    Path(path).write_text("left by a dead process")
    store = LocalStore()
    lock = store.lock(path, owner=False)
    assert lock is not None
    assert LocalStore().lock(path, owner=True) is None
    lock.release()
    assert not Path(path).exists()


def test_make_dirs_says_what_is_new(tmp_path: Path) -> None:
    store = LocalStore()
    assert make_dirs(store, f"{tmp_path}/a/b") == [f"{tmp_path}/a", f"{tmp_path}/a/b"]
    assert make_dirs(store, f"{tmp_path}/a/b") == []


@given(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1))
def test_paths(name: str) -> None:
    if name not in (".", ".."):
        assert name_of(join("/a/b", name)) == name
        assert parent_of(join("/a/b", name)) == "/a/b"


@given(
    st.sampled_from(["tmp", "trash", "old"]),
    st.text("abc-0123456789.", min_size=1),
    st.binary(min_size=8, max_size=8),
)
def test_work_names_are_parsed_as_printed(kind: str, name: str, random: bytes) -> None:
    assert parse_work_name(work_name(kind, name, random)) == (kind, name)


def test_other_names_are_nobodys() -> None:
    for name in (
        "5",
        "x",
        ".jaxckpt-tmp-5",
        "jaxckpt-tmp-5-0123456789abcdef",
        ".jaxckpt-new-5-0123456789abcdef",
    ):
        assert parse_work_name(name) is None
    assert [parse_step(n) for n in ("0", "12", "007", "-1", "1.5", "٣", "1" * 30, "")] == [
        0,
        12,
    ] + [None] * 6


@pytest.mark.parametrize("budget", [16 * MIB, 64 * MIB, 1024 * MIB])
def test_a_pool_never_holds_more_than_its_budget(budget: int) -> None:
    pool = HostPool(budget)
    assert pool.block_bytes == block_bytes_for(budget)
    most = budget // pool.block_bytes
    assert most >= 24
    blocks = [pool.acquire() for _ in range(16)]
    assert all(b.ctypes.data % 4096 == 0 for b in blocks)
    waiting = threading.Event()
    small = HostPool(16 * MIB)
    held = [small.acquire() for _ in range(16 * MIB // small.block_bytes)]
    thread = threading.Thread(target=lambda: (small.acquire(), waiting.set()))
    thread.start()
    assert not waiting.wait(0.05)
    small.give_back(held.pop())
    thread.join()
    assert 15 * MIB < small.peak_bytes <= 16 * MIB
    small.give_back(held.pop())
    small.trim()
    assert small._held == small.peak_bytes - small.block_bytes
    with_headroom = HostPool(16 * MIB)
    with_headroom.set_headroom(64 * MIB)
    kept = [with_headroom.acquire() for _ in range(18)]
    assert with_headroom.peak_bytes == 18 * with_headroom.block_bytes
    del kept


@settings(max_examples=40)
@given(
    lengths=st.lists(
        st.one_of(st.integers(1, 5000), st.integers(60_000, 3_000_000)), min_size=1, max_size=12
    ),
)
def test_values_of_any_size_copied_by_many_threads_land_where_they_belong(
    lengths: list[int],
) -> None:
    store = MemoryStore()
    pool = HostPool(16 * MIB)
    engine = Engine(2)
    job = engine.job()
    extents = ExtentWriter(store.create("/f", direct=True), pool, job.write, job.stopped)
    placer = Placer(1 << 40)
    places = [placer.place(n) for n in lengths]
    values = [np.random.default_rng(i).integers(1, 255, n, np.uint8) for i, n in enumerate(lengths)]
    for place in places:
        assert place.offset % (4096 if place.length >= 64 << 10 else 64) == 0

    def put(i: int) -> None:
        done = 0
        extents.fill_zeros(places[i].gap_start, places[i].offset - places[i].gap_start)
        for piece in extents.pieces(places[i].offset, lengths[i]):
            piece[:] = values[i][done : done + piece.size]
            done += piece.size

    job.join([job.copy(lambda i=i: put(i)) for i in range(len(lengths))])
    end = round_up(placer.ends[0])
    extents.fill_zeros(placer.ends[0], end - placer.ends[0])
    extents.finish(end)
    job.join(extents.writes)
    data = np.frombuffer(read_file(store, "/f", 1 << 30), np.uint8)
    assert data.size == end
    covered = np.zeros(end, bool)
    for place, value in zip(places, values, strict=True):
        np.testing.assert_array_equal(data[place.offset : place.offset + place.length], value)
        covered[place.offset : place.offset + place.length] = True
    assert not data[~covered].any()
    assert pool._held == len(pool._free) * pool.block_bytes
    engine.close()


def test_direct_io_is_used_or_refused(tmp_path: Path) -> None:
    writer = LocalStore(require_direct=True).create(str(tmp_path / "f"), direct=True)
    assert writer.direct
    writer.close()
    write_file(LocalStore(), str(tmp_path / "g"), b"x" * 5000)
    reader = LocalStore().open(str(tmp_path / "g"), direct=True)
    assert reader.direct
    reader.close()


def test_only_regular_files_are_appended_to(tmp_path: Path) -> None:
    store = LocalStore()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(StorageError, match=f"append failed on {tmp_path}/{name}"):
            store.append(f"{tmp_path}/{name}", b"y")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_what_was_appended_and_not_synced_may_be_lost() -> None:
    store = MemoryStore()
    store.append("/log", b"a")
    store.sync_dir("/")
    assert store.crash().stat("/log") is not None
    assert read_file(store.crash(), "/log", 10) == b""
    store.sync_file("/log")
    store.append("/log", b"b")
    assert read_file(store.crash(), "/log", 10) == b"a"
    assert read_file(store.kill(), "/log", 10) == b"ab"
