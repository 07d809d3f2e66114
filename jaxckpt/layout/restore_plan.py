"""Which bytes are read, once each, and to which places in memory they go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxckpt._types import Box, LeafSpec, Span
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.zarr import CRC_BYTES, chunk_key
from jaxckpt.layout.chunking import chunk_box, positions_meeting

_MOST_COMPRESSION = 1 << 15  # zstd packs zeros about this well
COALESCE_GAP_BYTES = 64 << 10
COALESCE_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """A region of a leaf that the result needs in one piece of memory."""

    leaf: int
    box: Box


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A stored chunk that is needed, and by which slots.

    Attributes:
        leaf: the leaf's number.
        box: the chunk's region, cut to the array.
        full_shape: the stored shape; larger than the region's at an uneven edge.
        source: where it lies, or the value itself.
        slots: numbers of the slots that share elements with it.
        crc: the crc32c that its place asks for; None where there are no checksums.
    """

    leaf: int
    box: Box
    full_shape: tuple[int, ...]
    source: Span | bytes
    slots: tuple[int, ...]
    crc: int | None


def span_of(read: ChunkRead) -> Span:
    """Where a stored value lies that is not in the index."""
    assert isinstance(read.source, Span)
    return read.source


class BadChunkError(LookupError):
    """A chunk is missing or has an impossible length; ``leaf`` names it."""

    def __init__(self, leaf: str, problem: str) -> None:
        self.leaf = leaf
        super().__init__(problem)


def plan_reads(
    leaves: Sequence[LeafSpec],
    slots: Sequence[Slot],
    find: Callable[[bytes], bytes | Span | None],
) -> list[ChunkRead]:
    """Each chunk that meets a slot, once, ordered by leaf.

    Raises:
        BadChunkError: the index lacks a chunk.
    """
    by_leaf: dict[int, list[int]] = {}
    for number, slot in enumerate(slots):
        by_leaf.setdefault(slot.leaf, []).append(number)
    reads: list[ChunkRead] = []
    for leaf, members in by_leaf.items():
        spec = leaves[leaf]
        if 0 in spec.stored_shape:
            continue
        needed: dict[tuple[int, ...], list[int]] = {}
        if spec.chunk_shape == spec.stored_shape:
            needed[(0,) * len(spec.stored_shape)] = members
        else:
            for number in members:
                for position in positions_meeting(slots[number].box, spec.chunk_shape):
                    needed.setdefault(position, []).append(number)
        for position, users in sorted(needed.items()):
            key = chunk_key(spec.name, position)
            source = find(key)
            if source is None:
                raise BadChunkError(spec.name, f"chunk {key.decode()} is not in the index")
            full = chunk_box(position, spec.chunk_shape)
            stop = tuple(map(min, full.stop, spec.stored_shape))
            box = Box(full.start, stop)
            crc = _expected_crc(spec, position)
            reads.append(ChunkRead(leaf, box, full.shape, source, tuple(users), crc))
    return reads


def check_lengths(
    leaves: Sequence[LeafSpec], reads: Sequence[ChunkRead], checksum: bool, compression: str | None
) -> None:
    """Holds the claimed size of each chunk against the stored length, before memory is taken.

    Raises:
        BadChunkError: they do not fit.
    """
    for read in reads:
        spec = leaves[read.leaf]
        stored = read.source.length if isinstance(read.source, Span) else len(read.source)
        claimed = chunk_bytes(spec) + (CRC_BYTES if checksum else 0)
        fits = claimed == stored
        if compression:
            fits = (
                claimed <= stored * _MOST_COMPRESSION and stored <= claimed + claimed // 64 + 1024
            )
        if not fits:
            raise BadChunkError(
                spec.name, f"chunk {list(read.box.start)} has {stored} bytes, {claimed} are claimed"
            )


def _expected_crc(spec: LeafSpec, position: tuple[int, ...]) -> int | None:
    if not spec.crcs:
        return None
    number = 0
    for p, n, c in zip(position, spec.stored_shape, spec.chunk_shape, strict=True):
        number = number * -(-n // c) + p
    return int.from_bytes(spec.crcs[4 * number : 4 * number + 4], "little")


def chunk_bytes(spec: LeafSpec) -> int:
    """Raw bytes of a whole chunk of a leaf."""
    return math.prod(spec.chunk_shape) * DTYPES[spec.dtype].itemsize


def contiguous_offset(inner: Box, outer: Box) -> int | None:
    """Element offset of ``inner`` in an array that holds ``outer`` in C order.

    None where its elements do not lie end to end there.
    """
    offset, stride, whole = 0, 1, True
    for a, b, lo, hi in zip(
        reversed(inner.start),
        reversed(inner.stop),
        reversed(outer.start),
        reversed(outer.stop),
        strict=True,
    ):
        if not whole and b - a != 1:
            return None
        if b - a != hi - lo:
            whole = False
        offset += (a - lo) * stride
        stride *= hi - lo
    return offset


def coalesce(
    spans: Sequence[tuple[Span, int]], gap_bytes: int = COALESCE_GAP_BYTES
) -> list[tuple[Span, list[tuple[int, int]]]]:
    """Joins spans that lie near one another in a file into reads of a few MiB.

    Args:
        spans: each with a number of the caller's.
        gap_bytes: what may lie between two of a read, and is read for nothing.

    Returns:
        Reads, each with the members' number and offset inside the read.
    """
    reads: list[tuple[Span, list[tuple[int, int]]]] = []
    for span, number in sorted(spans, key=lambda s: (s[0].file, s[0].offset)):
        if reads:
            last, members = reads[-1]
            near = span.file == last.file and span.offset - last.end <= gap_bytes
            if near and span.end - last.offset <= COALESCE_READ_BYTES:
                end = max(last.end, span.end)
                members.append((number, span.offset - last.offset))
                reads[-1] = Span(last.file, last.offset, end - last.offset), members
                continue
        reads.append((span, [(number, 0)]))
    return reads
