"""Buckets: every byte of every value read once, by one member, in stripes that are level."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.layout.gather_plan import (
    HEADER_BYTES,
    Bucket,
    plan_gather,
    plan_stripes,
    plan_trial,
    stripe_bytes_of,
)

LENGTHS = st.lists(
    st.one_of(
        st.integers(4097, 70_000),
        st.sampled_from([65_536, 65_540, 1 << 20, (1 << 20) + 4, 3_000_004, 9 << 20]),
    ),
    min_size=1,
    max_size=40,
)
GROUPS = st.lists(st.sampled_from([(0, 1), (0, 2, 5), (0, 1, 2, 3), (0, 3)]), min_size=1)


def buckets_of(lengths: list[int], groups: list[tuple[int, ...]], budget: int) -> list[Bucket]:
    stripes = plan_stripes(lengths, groups, budget)
    return plan_gather(range(len(lengths)), lengths, groups, stripes)


@given(LENGTHS, GROUPS, st.sampled_from([1 << 20, 8 << 20, 256 << 20]))
def test_every_byte_of_a_value_is_read_once_and_arrives_in_order(
    lengths: list[int], groups: list[tuple[int, ...]], budget: int
) -> None:
    assigned = [groups[i % len(groups)] for i in range(len(lengths))]
    buckets = buckets_of(lengths, assigned, budget)
    ends = [0] * len(lengths)
    for bucket in buckets:
        used: list[tuple[int, int, int]] = []
        for piece in bucket.pieces:
            assert assigned[piece.value] == bucket.group
            assert piece.start == ends[piece.value]
            assert piece.start % 4096 == 0
            assert piece.stop > piece.start
            ends[piece.value] = piece.stop
            size = piece.stop - piece.start
            if lengths[piece.value] >= 65_536:
                assert piece.offset % 4096 == 0
                size = -(-size // 4096) * 4096
            used.append((piece.member, piece.offset, piece.offset + size))
        used.sort()
        for (m, _, end), (n, start, _) in itertools.pairwise(used):
            assert m != n or end <= start
        assert all(start >= HEADER_BYTES and end <= bucket.stripe_bytes for _, start, end in used)
    assert ends == lengths
    assert [b.group for b in buckets] == sorted(b.group for b in buckets)


@given(LENGTHS, st.integers(2, 8))
def test_it_is_the_same_on_every_member(lengths: list[int], members: int) -> None:
    """A member knows other groups, too; the buckets of the one that they share are the same."""
    group = tuple(range(members))
    alone = buckets_of(lengths, [group] * len(lengths), 64 << 20)
    others = [5000, 9 << 20]
    mixed = buckets_of([*others, *lengths], [(0, 9), (0, 9), *([group] * len(lengths))], 64 << 20)
    shared = [b for b in mixed if b.group == group]
    assert [
        [(p.value - 2, p.start, p.stop, p.member, p.offset) for p in b.pieces] for b in shared
    ] == [[(p.value, p.start, p.stop, p.member, p.offset) for p in b.pieces] for b in alone]


@pytest.mark.parametrize("members", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("lengths", [[64 << 20] * 6, [300_004] * 500, [10 << 20], [4 << 30]])
def test_members_read_the_same_amount(members: int, lengths: list[int]) -> None:
    buckets = buckets_of(lengths, [tuple(range(members))] * len(lengths), 256 << 20)
    loads = [0] * members
    for bucket in buckets:
        for piece in bucket.pieces:
            loads[piece.member] += piece.stop - piece.start
    mean = sum(loads) / members
    assert max(loads) / mean < (1.05 if mean > 1 << 20 else 1.6)


@given(st.integers(1, 1 << 34), st.integers(2, 1024), st.sampled_from([1 << 20, 128 << 20]))
def test_stripes_stay_in_the_budget(total: int, members: int, budget: int) -> None:
    stripe = stripe_bytes_of(total, members, budget)
    assert stripe % (32 << 10) == 0
    assert stripe <= 4 << 20
    smallest = 32 << 10
    assert 3 * (members + 1) * stripe <= max(budget, 3 * (members + 1) * smallest)
    assert math.prod((members, stripe - HEADER_BYTES)) >= min(
        total, members * (stripe - HEADER_BYTES)
    )


@pytest.mark.parametrize("size", [1 << 20, (64 << 20) + 4, 5_000_004])
@pytest.mark.parametrize("members", [2, 4, 64])
def test_a_trial_is_small_beside_its_stream(size: int, members: int) -> None:
    for total in (100 << 20, 1 << 30, 20 << 30):
        count = max(1, total // size)
        lengths = [size] * count
        stripe = stripe_bytes_of(size * count, members, 128 << 20)
        trial = plan_trial(range(count), lengths, members, stripe)
        if trial is None:
            assert total < 900 << 20 or members == 64
            continue
        assert trial.handed == list(range(len(trial.handed)))
        assert 6 * sum(lengths[v] for v in trial.handed) <= size * count
        read = sum(p.stop - p.start for p in trial.sample)
        assert 2 << 20 <= read <= 16 << 20
        assert read * members <= 0.031 * size * count
        assert {p.value for p in trial.sample}.isdisjoint(trial.handed)


def test_a_short_stream_has_no_trial() -> None:
    assert plan_trial(range(90), [1 << 20] * 90, 4, 4 << 20) is None
    assert plan_trial([0], [1 << 40], 4, 4 << 20) is None


def test_stripes_have_few_sizes() -> None:
    """Each is compiled."""
    sizes = {stripe_bytes_of(total, 4, 128 << 20) for total in range(1 << 20, 1 << 30, 999_983)}
    assert len(sizes) < 60


def test_the_end_of_a_value_may_be_less_than_a_block() -> None:
    # Values that lie on no block border leave odd rooms behind them.
    lengths = [n for k in range(0, 4096, 64) for n in (16_388 + k, 61_440 + k, 20_484)]
    buckets = buckets_of(lengths, [(0, 1)] * len(lengths), 1 << 20)
    assert sum(p.stop - p.start for b in buckets for p in b.pieces) == sum(lengths)
