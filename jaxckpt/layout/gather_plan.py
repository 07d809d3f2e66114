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
_ALIGN_LARGE_FROM = 64 << 10  # such values lie on block borders in their files
_STRIPE_UNIT = 64 << 10
_LEAST_PIECE = 16 << 10  # of a value that is cut, but for its end; fits in the smallest stripe
_MOST_STRIPE_BYTES = 4 << 20
_TRIAL_BUCKETS = 2
_TRIAL_SHARE = 6  # a trial takes at most this part of a stream
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
        budget_bytes: device memory for the buckets of one process.
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


def trial_parts(
    values: Sequence[int], lengths: Sequence[int], bucket_bytes: int
) -> tuple[list[int], list[int]] | None:
    """The first values of a stream, to be handed on, and the next, to be read by every member.

    None where the stream is too short for a trial to pay.
    """
    parts: tuple[list[int], list[int]] = ([], [])
    wanted = (_TRIAL_BUCKETS * bucket_bytes, 2 * _TRIAL_BUCKETS * bucket_bytes)
    total = taken = 0
    for value in values:
        total += lengths[value]
        if taken < wanted[1]:
            parts[taken >= wanted[0]].append(value)
            taken += lengths[value]
    return parts if total >= _TRIAL_SHARE * taken and parts[1] else None


def stripe_bytes_of(total_bytes: int, members: int, budget_bytes: int) -> int:
    """The stripe, header included, that brings a stream in equal buckets within the budget."""
    most = budget_bytes // (_STRIPES_HELD * (members + 1))
    most = max(_STRIPE_UNIT, min(most, _MOST_STRIPE_BYTES) // _STRIPE_UNIT * _STRIPE_UNIT)
    room = most - HEADER_BYTES
    count = max(1, -(-total_bytes // (members * room)))
    stripe = -(-total_bytes // (members * count)) + HEADER_BYTES
    return -(-stripe // _STRIPE_UNIT) * _STRIPE_UNIT


def _plan_stream(
    group: Group, values: Sequence[int], lengths: Sequence[int], stripe: int
) -> list[Bucket]:
    buckets: list[Bucket] = []
    pieces: list[Piece] = []
    ends = [HEADER_BYTES] * len(group)
    run = (stripe - HEADER_BYTES) // 4
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
            room = stripe - offset
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
    return _BLOCK if length >= _ALIGN_LARGE_FROM else _SMALL_ALIGN


def _room(length: int) -> int:
    align = _align(length)
    return -(-length // align) * align
