"""Reads a process's stripe of a bucket: large pieces straight into it, small ones in few reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import Span
from jaxckpt.io.chunk_reader import ChunkReader
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.extents import round_up
from jaxckpt.io.store import BLOCK_BYTES
from jaxckpt.layout.gather_plan import ALIGN_LARGE_FROM, Piece
from jaxckpt.layout.restore_plan import ChunkRead, coalesce


class StripeReader:
    """Reads pieces of stored values.

    Args:
        reader: the item's files.
        sink: words the errors.
        reads: the stored values by the numbers that pieces use.
    """

    def __init__(self, reader: ChunkReader, sink: ChunkSink, reads: Sequence[ChunkRead]) -> None:
        self._reader, self._sink, self._reads = reader, sink, reads

    def tasks(
        self, pieces: Sequence[Piece], stripe_of: Callable[[int], NDArray[np.uint8]]
    ) -> list[Callable[[], None]]:
        """What to run, on any threads, to have all pieces in memory.

        Args:
            stripe_of: page-aligned memory of a member's stripe, uint8.
        """
        tasks: list[Callable[[], None]] = []
        small: list[tuple[Span, int]] = []
        for number, piece in enumerate(pieces):
            span = self._span(piece)
            # Only what has whole blocks of the stripe to itself may be read in whole blocks.
            whole = self._length(piece) >= ALIGN_LARGE_FROM
            if whole and span.offset % BLOCK_BYTES == 0 and piece.offset % BLOCK_BYTES == 0:
                room = stripe_of(piece.member)[piece.offset :][: round_up(span.length)]
                if room.size == round_up(span.length):
                    tasks.append(self._straight(piece, span, room))
                    continue
            small.append((span, number))
        for span, members in coalesce(small, BLOCK_BYTES):  # other members read the rest
            tasks.append(self._together(span, [(pieces[n], at) for n, at in members], stripe_of))
        return tasks

    def _length(self, piece: Piece) -> int:
        source = self._reads[piece.value].source
        return source.length if isinstance(source, Span) else len(source)

    def _span(self, piece: Piece) -> Span:
        source = self._reads[piece.value].source
        assert isinstance(source, Span)
        return Span(source.file, source.offset + piece.start, piece.stop - piece.start)

    def _straight(self, piece: Piece, span: Span, room: NDArray[np.uint8]) -> Callable[[], None]:
        def run() -> None:
            got = self._reader.reader(span.file).read_into(span.offset, [room.data])
            self._check(piece, got, span.length)

        return run

    def _together(
        self,
        span: Span,
        parts: list[tuple[Piece, int]],
        stripe_of: Callable[[int], NDArray[np.uint8]],
    ) -> Callable[[], None]:
        def run() -> None:
            first = span.offset % BLOCK_BYTES
            scratch = self._reader.scratch(round_up(first + span.length))
            got = self._reader.reader(span.file).read_into(span.offset - first, [scratch.data])
            self._check(parts[0][0], got - first, span.length)
            for piece, at in parts:
                size = piece.stop - piece.start
                row = stripe_of(piece.member)
                row[piece.offset : piece.offset + size] = scratch[first + at : first + at + size]

        return run

    def _check(self, piece: Piece, got: int, wanted: int) -> None:
        self._sink.check_read(
            self._reads[piece.value], piece.start + min(got, wanted), piece.start + wanted
        )
