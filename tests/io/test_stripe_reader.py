"""Tasks that fill a stripe write to their own places only, in whatever order they run."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt._types import Box, LeafSpec, Span
from jaxckpt.io.chunk_reader import ChunkReader
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import write_file
from jaxckpt.io.stripe_reader import StripeReader
from jaxckpt.layout.gather_plan import plan_gather, plan_stripes
from jaxckpt.layout.placement import Placer
from jaxckpt.layout.restore_plan import ChunkRead
from jaxckpt.testing.memory_store import MemoryStore

LENGTHS = st.lists(
    st.one_of(
        st.integers(4097, 12_000),
        st.just(10_004),
        st.sampled_from([4096 * 4, 65_532, 65_536, 65_540, 300_004]),
    ),
    min_size=1,
    max_size=60,
)


@given(LENGTHS, st.integers(2, 4), st.integers(0, 1 << 30))
def test_every_byte_is_the_one_of_its_value(lengths: list[int], members: int, seed: int) -> None:
    placer = Placer(1 << 20)
    places = [placer.place(n) for n in lengths]
    rng = np.random.default_rng(seed)
    store = MemoryStore()
    store.make_dir("/item")
    files = [rng.integers(0, 256, -(-end // 4096) * 4096, np.uint8) for end in placer.ends]
    for number, data in enumerate(files):
        write_file(store, f"/item/{number}", data.tobytes())
    reads = [
        ChunkRead(0, Box((0,), (n,)), (n,), Span(str(p.file), p.offset, n), (0,), None)
        for p, n in zip(places, lengths, strict=True)
    ]
    leaf = LeafSpec("x", (("key", "x"),), "jax", (1,), "uint8", (1,), (1,))
    sink = ChunkSink(
        "/item", [leaf], [], [], checksum=False, compression=None, placed=lambda _: None
    )
    reader = ChunkReader(store, sink, direct=False)
    group = tuple(range(members))
    groups = [group] * len(lengths)
    stripes = plan_stripes(lengths, groups, 1 << 20)
    for bucket in plan_gather(range(len(lengths)), lengths, groups, stripes):
        flat = np.frombuffer(aligned_memory(members * bucket.stripe_bytes), np.uint8)
        memory = flat.reshape(members, bucket.stripe_bytes)
        tasks = StripeReader(reader, sink, reads).tasks(bucket.pieces, lambda m, to=memory: to[m])
        random.Random(seed).shuffle(tasks)
        for task in tasks:
            task()
        for piece in bucket.pieces:
            place = places[piece.value]
            want = files[place.file][place.offset + piece.start : place.offset + piece.stop]
            got = memory[piece.member, piece.offset :][: want.size]
            assert got.tobytes() == want.tobytes()
    reader.close()
