"""Where in the data files the values of one process go: end to end, large ones on block borders."""

from __future__ import annotations

from dataclasses import dataclass

_ALIGN_LARGE_FROM = 64 << 10
_BLOCK = 4096
_SMALL_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Place:
    """A value's place: file number, offset, and where the zero bytes in front of it begin."""

    file: int
    gap_start: int
    offset: int
    length: int

    @property
    def begins_file(self) -> bool:
        """Whether this is the first value of its file: then the file before it is complete."""
        return self.offset == 0


class Placer:
    """Hands out places one after another; the same calls give the same places.

    Args:
        data_file_bytes: no value begins in a file that holds as many bytes already.
    """

    def __init__(self, data_file_bytes: int) -> None:
        self._limit = data_file_bytes
        self.ends: list[int] = []

    def place(self, length: int) -> Place:
        """The next place for a value of ``length`` bytes."""
        align = _align(length)
        if not self.ends or self.ends[-1] >= self._limit:
            self.ends.append(0)
        end = self.ends[-1]
        offset = -(-end // align) * align
        self.ends[-1] = offset + length
        return Place(len(self.ends) - 1, end, offset, length)


def longest_place(length: int) -> int:
    """A value's bytes with the widest gap that can be in front of it."""
    return length + _align(length) - 1


def _align(length: int) -> int:
    return _BLOCK if length >= _ALIGN_LARGE_FROM else _SMALL_ALIGN
