"""Who reads which stored bytes when several processes need the same, and where they travel.

The stored values that one set of processes needs (its group) form a stream. It goes in buckets:
each member reads its stripe of a bucket, an AllGather hands every member all stripes. Whole values
are dealt to the members, level by bytes; a value that is large beside a stripe is cut.

Pure, and the same on every member with no message: it depends on the group's values alone. Every
process runs the buckets of its groups in the order of this plan; since that order is one for the
whole job, processes that share several groups never wait for one another in a ring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEADER_BYTES = 4096
"""In front of each stripe: whether its member has read it."""
_BLOCK = 4096
_SMALL_ALIGN = 64
ALIGN_LARGE_FROM = 64 << 10
"""Values from this size on lie on block borders, in their files and in stripes."""
_STRIPE_UNIT = 32 << 10
_LEAST_PIECE = 8 << 10  # of a value that is cut, but for its end; fits in the smallest stripe
_MOST_STRIPE_BYTES = 4 << 20
_TRIAL_BUCKETS = 2
_TRIAL_SHARE = 6  # what a trial hands on is at most this part of a stream
_SAMPLE_SHARE = 0.03  # what it reads for nothing, by all members together
_SAMPLE_BYTES = (2 << 20, 16 << 20)
_SAMPLE_PIECE = 512 << 10
_STRIPES_HELD = 3  # being read, being gathered, being taken apart

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stored value that one member reads.

    Attributes:
        value: the value's number.
        start, stop: the range of its bytes; ``start`` is on a block border.
        member: place of the reading process in the group.
        offset: in the member's stripe.
    """

    value: int
    start: int
    stop: int
    member: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One AllGather. Pieces of a value come in order, within a bucket and from one to the next."""

    group: Group
    stripe_bytes: int
    pieces: tuple[Piece, ...]


def plan_stripes(
    lengths: Sequence[int], groups: Sequence[Group], budget_bytes: int
) -> dict[Group, int]:
    """Bytes of a stripe, header included, for each group.

    Args:
        lengths: bytes of each stored value.
        groups: who needs it, ascending; at least two processes.
        budget_bytes: device memory for the buckets of one process. Beyond some thousand members
            the smallest stripes take more.
    """
    totals: dict[Group, int] = {}
    for length, group in zip(lengths, groups, strict=True):
        totals[group] = totals.get(group, 0) + _room(length)
    return {g: stripe_bytes_of(total, len(g), budget_bytes) for g, total in totals.items()}


def plan_gather(
    values: Sequence[int],
    lengths: Sequence[int],
    groups: Sequence[Group],
    stripes: Mapping[Group, int],
) -> list[Bucket]:
    """The buckets for some values, of all groups that the caller is in.

    Args:
        values: numbers of the values, in the order of their places in the files.
        lengths, groups: of all values; see `plan_stripes`.
        stripes: from `plan_stripes`.
    """
    streams: dict[Group, list[int]] = {}
    for value in values:
        streams.setdefault(groups[value], []).append(value)
    buckets: list[Bucket] = []
    for group in sorted(streams):
        buckets += _plan_stream(group, streams[group], lengths, stripes[group])
    return buckets


@dataclass(frozen=True, slots=True)
class Trial:
    """What to try both ways on.

    Attributes:
        handed: the first values of the stream, to be handed on.
        sample: of the values behind them, as many bytes as each member reads, and drops.
    """

    handed: list[int]
    sample: list[Piece]


def plan_trial(
    values: Sequence[int], lengths: Sequence[int], members: int, stripe_bytes: int
) -> Trial | None:
    """The trial of a stream; None where it is too short for one to pay."""
    total = sum(lengths[v] for v in values)
    least, most = _SAMPLE_BYTES
    size = min(most, int(_SAMPLE_SHARE * total) // members) // _BLOCK * _BLOCK
    wanted = _TRIAL_BUCKETS * members * stripe_bytes
    count = taken = 0
    while count < len(values) and taken < wanted:
        taken += lengths[values[count]]
        count += 1
    if size < least or taken * _TRIAL_SHARE > total:
        return None
    sample: list[Piece] = []
    for value in values[count:]:
        stop = min(lengths[value], size)
        sample += [
            Piece(value, start, min(start + _SAMPLE_PIECE, stop), 0, 0)
            for start in range(0, stop, _SAMPLE_PIECE)
        ]
        size -= stop
        if size <= 0:
            break
    return Trial(list(values[:count]), sample)


def stripe_bytes_of(total_bytes: int, members: int, budget_bytes: int) -> int:
    """The stripe, header included, that brings a stream in equal buckets within the budget.

    One of few sizes, since each is compiled.
    """
    most = _size(budget_bytes // (_STRIPES_HELD * (members + 1)), down=True)
    most = max(_STRIPE_UNIT, min(most, _MOST_STRIPE_BYTES))
    count = max(1, -(-total_bytes // (members * (most - HEADER_BYTES))))
    return min(most, _size(-(-total_bytes // (members * count)) + HEADER_BYTES))


def _size(nbytes: int, *, down: bool = False) -> int:
    """The next size above, or below: multiples of an eighth of the power of two below it."""
    step = max(_STRIPE_UNIT, 1 << max(0, nbytes.bit_length() - 4))
    return nbytes // step * step if down else -(-nbytes // step) * step


def _plan_stream(
    group: Group, values: Sequence[int], lengths: Sequence[int], stripe: int
) -> list[Bucket]:
    buckets: list[Bucket] = []
    pieces: list[Piece] = []
    ends = [HEADER_BYTES] * len(group)
    run = (stripe - HEADER_BYTES) // 4
    total = sum(_room(lengths[v]) for v in values)
    count = max(1, -(-total // (len(group) * (stripe - HEADER_BYTES))))
    share = -(-total // (len(group) * count * _BLOCK)) * _BLOCK
    level = min(stripe, HEADER_BYTES + max(share, _LEAST_PIECE))  # how full cut values make stripes
    member = until = 0  # who reads on, and up to where in its stripe

    def close() -> None:
        buckets.append(Bucket(group, stripe, tuple(pieces)))
        pieces.clear()
        ends[:] = [HEADER_BYTES] * len(group)

    for value in values:
        length = lengths[value]
        align = _align(length)
        cut = length > run
        start = 0
        while start < length:
            # Small values that follow one another in a file are one read of one member.
            if cut or ends[member] >= until or stripe - ends[member] < _room(length) + align:
                member = ends.index(min(ends))
                until = ends[member] + run
            offset = -(-ends[member] // align) * align
            room = (level if cut else stripe) - offset
            size = length - start
            if room < (min(_room(size), _LEAST_PIECE) if cut else _room(size)):
                close()
                until = 0
                continue
            if size > room:
                size = room // _BLOCK * _BLOCK
            pieces.append(Piece(value, start, start + size, member, offset))
            ends[member] = offset + -(-size // align) * align
            start += size
    if pieces:
        close()
    return buckets


def _align(length: int) -> int:
    return _BLOCK if length >= ALIGN_LARGE_FROM else _SMALL_ALIGN


def _room(length: int) -> int:
    align = _align(length)
    return -(-length // align) * align
