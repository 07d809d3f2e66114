"""Data files held in memory, against a plain copy of what they must be."""

from __future__ import annotations

import random
import struct

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxckpt import Checkpointer, Options
from jaxckpt.format.zarr import packed_bound
from jaxckpt.io.engine import Engine
from jaxckpt.io.extents import round_up
from jaxckpt.io.held import HeldFiles
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import read_file
from jaxckpt.io.waiting import AbandonedError
from jaxckpt.layout.placement import Placer, longest_place
from jaxckpt.layout.write_plan import WritePlan
from jaxckpt.testing.memory_store import MemoryStore
from jaxckpt.testing.strategies import assert_same

MIB = 1 << 20


@settings(max_examples=40)
@given(
    lengths=st.lists(
        st.one_of(st.integers(1, 5000), st.integers(60_000, 3_000_000)), min_size=1, max_size=12
    ),
    file_bytes=st.sampled_from([MIB, 1 << 40]),
    checksum=st.booleans(),
    reserve=st.booleans(),
)
def test_files_are_what_was_copied(
    lengths: list[int], file_bytes: int, checksum: bool, reserve: bool
) -> None:
    store, engine = MemoryStore(), Engine(2)
    pool, footer = HostPool(64 * MIB), 4 if checksum else 0
    job = engine.job()
    placer = Placer(file_bytes)
    places = [placer.place(n + footer) for n in lengths]
    values = [np.random.default_rng(i).integers(1, 255, n, np.uint8) for i, n in enumerate(lengths)]
    dirty = pool.acquire()
    assert dirty is not None
    dirty.fill(7)
    pool.give_back(dirty)
    held = HeldFiles(pool, () if reserve else placer.ends, job.stopped, checksum=checksum)
    held.acquire()
    for i in reversed(range(len(places))):
        if reserve:
            held.reserve(places[i])
        held.copy(places[i], values[i])
    crcs = np.zeros(len(places), np.uint32)
    for file, end in enumerate(placer.ends):
        inside = [(p, i) for i, p in enumerate(places) if p.file == file]
        writer = store.create(f"/{file}", direct=True)
        assert held.write(file, inside, crcs, writer, job.write, job.check) == round_up(end)
    job.join(held.pending)
    held.give_back()
    assert pool._held == len(pool._free) * pool.block_bytes
    for file, end in enumerate(placer.ends):
        wanted = np.zeros(round_up(end), np.uint8)
        for i, place in enumerate(places):
            if place.file == file:
                wanted[place.offset : place.offset + lengths[i]] = values[i]
                if checksum:
                    crc = crc32c.crc32c(values[i].data)
                    assert crcs[i] == crc
                    stop = place.offset + place.length
                    wanted[stop - 4 : stop] = np.frombuffer(struct.pack("<I", crc), np.uint8)
        data = np.frombuffer(read_file(store, f"/{file}", 1 << 30), np.uint8)
        np.testing.assert_array_equal(data, wanted)
    engine.close()


def test_a_save_that_failed_takes_no_more_memory_and_gives_all_back() -> None:
    pool = HostPool(16 * MIB)
    kept = [pool.acquire() for _ in range(pool.blocks - 3)]
    stopped = iter([False] * 2 + [True] * 1000)
    held = HeldFiles(pool, [8 * pool.block_bytes], lambda: next(stopped), checksum=True)
    with pytest.raises(AbandonedError):
        held.acquire()
    held.give_back()
    assert pool._held == (len(kept) + len(pool._free)) * pool.block_bytes
    for block in kept:
        assert block is not None
        pool.give_back(block)


@pytest.mark.parametrize("large_last", [False, True])
def test_compressed_values_fill_other_files_than_plain_ones_would(large_last: bool) -> None:
    """A large value may come into a file that would have been full without compression."""
    from conftest import world_of

    options = Options(
        compression="zstd", data_file_bytes=MIB, chunk_bytes=4 * MIB, memory_budget_bytes=128 * MIB
    )
    rng = np.random.default_rng(0)
    state = {f"a{i}": np.zeros(100_000) for i in range(5)}
    state["z" if large_last else "a2x"] = rng.random(400_000)
    state["zz"] = np.zeros(100_000)
    with Checkpointer("/run", options=options, world=world_of(MemoryStore())) as ckpt:
        ckpt.save(1, state)
        assert_same(state, ckpt.restore(state))
        assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes


def test_compressed_values_that_grow_out_of_their_files_do_not_wait_for_memory_for_ever() -> None:
    """Two plain values go to a file; compressed ones are longer than a file, so one goes."""
    from conftest import world_of

    options = Options(compression="zstd", data_file_bytes=MIB, memory_budget_bytes=48 * MIB)
    rng = np.random.default_rng(0)
    state = {f"{i:02}": rng.integers(0, 255, MIB - 8, dtype=np.uint8) for i in range(26)}
    with Checkpointer("/run", options=options, world=world_of(MemoryStore())) as ckpt:
        ckpt.save(1, state)
        assert_same(state, ckpt.restore(state))


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=40), st.integers(1, 4), st.randoms())
def test_no_order_of_compressed_values_takes_more_blocks_than_planned(
    sizes: list[int], limit: int, chance: random.Random
) -> None:
    lengths = [packed_bound(size) + 4 for size in sizes]
    limit_bytes, block = limit * 100_000, 256 << 10
    chance.shuffle(lengths)
    placer = Placer(limit_bytes)
    for length in lengths:
        placer.place(chance.randint(1, length))
    worst = sum(map(longest_place, lengths))
    plan = WritePlan((), (), 0, 0, True, (), 0, (worst, worst // limit_bytes + 1))
    assert sum(-(-end // block) for end in placer.ends) <= plan.blocks(block)
