"""The buckets of a restore: every byte once, in its place, level over the members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxckpt.layout.gather_plan import HEADER_BYTES, Bucket, plan_gather

MIB = 1 << 20
LENGTHS = st.one_of(
    st.integers(1, 5000),
    st.integers(15_000, 70_000),
    st.integers(1, 3 * MIB),
    st.sampled_from([4096, 65536, 65540, 61440, 61444, MIB, 40 * MIB + 4]),
)
GROUPS = st.sampled_from([(0, 1), (0, 1, 2, 3), (0, 5), (0, 1, 2), tuple(range(16))])
BUDGETS = st.sampled_from([MIB, 8 * MIB, 128 * MIB])


def check(lengths: list[int], groups: list[tuple[int, ...]], buckets: list[Bucket]) -> None:
    ends = dict.fromkeys(range(len(lengths)), 0)
    for bucket in buckets:
        taken: dict[int, int] = {}
        assert bucket.stripe_bytes % (64 << 10) == 0
        for piece in bucket.pieces:
            assert groups[piece.value] == bucket.group
            assert piece.start == ends[piece.value]  # in order, none missed
            assert piece.start % 4096 == 0
            ends[piece.value] = piece.stop
            assert 0 <= piece.member < len(bucket.group)
            assert piece.offset >= taken.get(piece.member, HEADER_BYTES)  # none on another
            taken[piece.member] = piece.offset + piece.stop - piece.start
            assert taken[piece.member] <= bucket.stripe_bytes
    assert ends == dict(enumerate(lengths))


@settings(max_examples=400)
@given(st.lists(st.tuples(LENGTHS, GROUPS), max_size=60), BUDGETS)
def test_every_byte_goes_once_and_in_order(
    values: list[tuple[int, tuple[int, ...]]], budget: int
) -> None:
    lengths, groups = [v[0] for v in values], [v[1] for v in values]
    check(lengths, groups, plan_gather(lengths, groups, budget))


@given(LENGTHS, GROUPS, BUDGETS)
def test_one_value_alone(length: int, group: tuple[int, ...], budget: int) -> None:
    check([length], [group], plan_gather([length], [group], budget))


@given(st.lists(LENGTHS, min_size=1, max_size=200), GROUPS, BUDGETS)
def test_the_stripes_are_few_and_level(
    lengths: list[int], group: tuple[int, ...], budget: int
) -> None:
    buckets = plan_gather(lengths, [group] * len(lengths), budget)
    moved = sum(b.stripe_bytes for b in buckets) * len(group)
    least = sum(lengths)
    assert moved <= 2 * least + 2 * len(group) * buckets[0].stripe_bytes
    assert all(3 * (len(group) + 1) * b.stripe_bytes <= budget for b in buckets) or (
        buckets[0].stripe_bytes == 64 << 10
    )


def test_the_end_of_a_value_may_be_less_than_a_block() -> None:
    # Values that lie on no block border leave odd rooms behind them.
    lengths = [n for k in range(0, 4096, 64) for n in (16_388 + k, 61_440 + k, 20_484)]
    check(lengths, [(0, 1)] * len(lengths), plan_gather(lengths, [(0, 1)] * len(lengths), MIB))
