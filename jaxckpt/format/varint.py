"""Columns of unsigned LEB128 numbers, decoded and encoded in bulk.

OCDBT stores each field of all entries of a node one after another, so that a node is a handful of
varint columns; with numpy a million of them cost milliseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_VARINT_BYTES = 10


class TruncatedError(ValueError):
    """The column ends before its last number does, or a number does not fit 64 bits."""


def decode_number(data: bytes, pos: int) -> tuple[int, int]:
    """Reads the number that starts at ``pos``; returns it and the position behind."""
    value = shift = 0
    for at in range(pos, min(len(data), pos + MAX_VARINT_BYTES)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + 1
        shift += 7
    raise TruncatedError(f"no number of 64 bits at {pos}")


def decode_column(data: NDArray[np.uint8], pos: int, count: int) -> tuple[NDArray[np.uint64], int]:
    """Reads ``count`` numbers that start at ``pos``; returns them and the position behind."""
    if count == 0:
        return np.zeros(0, np.uint64), pos
    window = data[pos : pos + count * MAX_VARINT_BYTES]
    ends = np.flatnonzero(window < 0x80)[:count]
    if len(ends) < count:
        raise TruncatedError(f"{count} numbers expected at {pos}, {len(ends)} found")
    starts = np.empty(count, np.int64)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest == 1:
        return window[:count].astype(np.uint64), pos + count
    if longest > MAX_VARINT_BYTES:
        raise TruncatedError(f"a number at {pos} has {longest} bytes")
    if longest == MAX_VARINT_BYTES and int(window[ends[lengths == longest]].max()) > 1:
        raise TruncatedError(f"a number at {pos} does not fit 64 bits")
    values = np.zeros(count, np.uint64)
    for k in range(longest):
        mask = lengths > k
        values[mask] |= (window[starts[mask] + k] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(
            7 * k
        )
    return values, pos + int(ends[-1]) + 1


def encode_column(values: NDArray[np.uint64] | list[int]) -> bytes:
    """The numbers one after another, each in its shortest form."""
    column = np.asarray(values, np.uint64)
    if column.size == 0:
        return b""
    lengths = np.ones(column.size, np.int64)
    rest = column >> np.uint64(7)
    while rest.any():
        lengths += rest != 0
        rest >>= np.uint64(7)
    starts = np.zeros(column.size, np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    out = np.zeros(int(lengths.sum()), np.uint8)
    for k in range(int(lengths.max())):
        mask = lengths > k
        byte = ((column[mask] >> np.uint64(7 * k)) & np.uint64(0x7F)).astype(np.uint8)
        byte |= np.where(lengths[mask] > k + 1, np.uint8(0x80), np.uint8(0))
        out[starts[mask] + k] = byte
    return out.tobytes()
