"""B+tree nodes of OCDBT: sorted keys, each with a value inside the node or a span of a data file.

Columns all the way: a node of 30,000 entries is decoded by a dozen numpy calls and one loop that
joins the keys. Source: the B+tree node format on TensorStore's page on its `ocdbt` driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jaxckpt.format.cursor import Cursor
from jaxckpt.format.datafiles import DataFile, check_data_path, decode_table, encode_table
from jaxckpt.format.frame import BTREE_MAGIC, FormatError, decode_frame, encode_frame
from jaxckpt.format.limits import (
    MAX_ENTRIES_PER_NODE,
    MAX_INLINE_BYTES,
    MAX_KEY_BYTES,
    MAX_TREE_HEIGHT,
)
from jaxckpt.format.varint import encode_column

_PREFIX_SCAN_BYTES = 512  # a longer common prefix is legal but not worth the memory to find


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value that lies in a data file."""

    file: DataFile
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A child node: its first key, where it lies and the sums of what is below it."""

    key: bytes
    location: ValueRef
    num_keys: int
    tree_bytes: int
    indirect_bytes: int


@dataclass(slots=True)
class LeafNode:
    """A decoded leaf: row i has ``keys[i]``; ``file_ids[i]`` is -1 for a value in ``inline``."""

    files: list[DataFile]
    keys: list[bytes]
    file_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    inline: dict[int, bytes] = field(default_factory=dict[int, bytes])


@dataclass(slots=True)
class InteriorNode:
    """A decoded interior node."""

    height: int
    children: list[NodeRef]
    prefix_lengths: list[int]


def encode_leaf(entries: Sequence[tuple[bytes, bytes | ValueRef]]) -> bytes:
    """Encodes sorted entries as one node of height 0."""
    keys = [key for key, _ in entries]
    refs = [v for _, v in entries if isinstance(v, ValueRef)]
    files, ids = _file_ids([r.file for r in refs])
    lengths = [v.length if isinstance(v, ValueRef) else len(v) for _, v in entries]
    kinds = bytes(1 if isinstance(v, ValueRef) else 0 for _, v in entries)
    prefixes, suffixes, tails = _split_keys(keys)
    body = (
        b"\x00"
        + encode_table(files)
        + encode_column([len(keys)])
        + prefixes
        + suffixes
        + tails
        + encode_column(lengths)
        + kinds
        + encode_column(ids)
        + encode_column([r.offset for r in refs])
        + b"".join(v for _, v in entries if not isinstance(v, ValueRef))
    )
    return encode_frame(BTREE_MAGIC, body)


def encode_interior(height: int, children: Sequence[NodeRef]) -> bytes:
    """Encodes child references as one node of the height; no common prefix is left out."""
    files, ids = _file_ids([c.location.file for c in children])
    prefixes, suffixes, tails = _split_keys([c.key for c in children])
    body = (
        bytes([height])
        + encode_table(files)
        + encode_column([len(children)])
        + prefixes
        + suffixes
        + encode_column([0] * len(children))
        + tails
        + encode_column(ids)
        + encode_column([c.location.offset for c in children])
        + encode_column([c.location.length for c in children])
        + encode_column([c.num_keys for c in children])
        + encode_column([c.tree_bytes for c in children])
        + encode_column([c.indirect_bytes for c in children])
    )
    return encode_frame(BTREE_MAGIC, body)


def decode_node(data: bytes, what: str, transitive: str, prefix: bytes) -> LeafNode | InteriorNode:
    """Decodes a node; ``prefix`` goes in front of all its keys, ``transitive`` of its paths."""
    cursor = Cursor(decode_frame(BTREE_MAGIC, data, what), what)
    height = cursor.number("height", MAX_TREE_HEIGHT)
    files = decode_table(cursor, transitive)
    count = cursor.number("num_entries", MAX_ENTRIES_PER_NODE)
    if count == 0:
        raise FormatError(f"{what}: num_entries is 0; a node has at least one entry")
    key_prefixes = np.zeros(count, np.int64)
    key_prefixes[1:] = cursor.column("key_prefix_length", count - 1, MAX_KEY_BYTES)
    key_suffixes = cursor.column("key_suffix_length", count, MAX_KEY_BYTES)
    if height:
        common = cursor.column("subtree_common_prefix_length", count, MAX_KEY_BYTES)
        keys = _join_keys(cursor, key_prefixes, key_suffixes, prefix)
        return _decode_interior(cursor, height, files, keys, common, len(prefix))
    keys = _join_keys(cursor, key_prefixes, key_suffixes, prefix)
    return _decode_leaf(cursor, files, keys)


def _decode_leaf(cursor: Cursor, files: list[DataFile], keys: list[bytes]) -> LeafNode:
    count = len(keys)
    lengths = cursor.column("value_length", count)
    kinds = np.frombuffer(cursor.take("value_kind", count), np.uint8)
    if int(kinds.max()) > 1:
        raise FormatError(f"{cursor.what}: value_kind is {int(kinds.max())}; allowed are 0 and 1")
    outside = np.flatnonzero(kinds)
    inside = np.flatnonzero(kinds == 0)
    file_ids = np.full(count, -1, np.int64)
    offsets = np.zeros(count, np.int64)
    file_ids[outside] = _used_files(cursor, files, len(outside))
    offsets[outside] = cursor.column("data_file_offset", len(outside))
    if len(inside) and int(lengths[inside].max()) > MAX_INLINE_BYTES:
        raise FormatError(
            f"{cursor.what}: an inline value has {int(lengths[inside].max())} bytes; "
            f"allowed are {MAX_INLINE_BYTES}"
        )
    inline = {int(i): cursor.take(f"value[{i}]", int(lengths[i])) for i in inside}
    cursor.finish()
    if len(outside) and int((offsets[outside].astype(np.float64) + lengths[outside]).max()) > 2**62:
        raise FormatError(f"{cursor.what}: an offset and its length go beyond 2^62")
    return LeafNode(files, keys, file_ids, offsets, lengths, inline)


def _decode_interior(
    cursor: Cursor,
    height: int,
    files: list[DataFile],
    keys: list[bytes],
    common: NDArray[np.int64],
    prefix_bytes: int,
) -> InteriorNode:
    count = len(keys)
    ids = _used_files(cursor, files, count)
    offsets = cursor.column("data_file_offset", count)
    lengths = cursor.column("data_file_length", count)
    num_keys = cursor.column("num_keys", count)
    tree_bytes = cursor.column("num_tree_bytes", count)
    indirect = cursor.column("num_indirect_value_bytes", count)
    cursor.finish()
    children: list[NodeRef] = []
    for i in range(count):
        if int(common[i]) > len(keys[i]) - prefix_bytes:
            raise FormatError(
                f"{cursor.what}: subtree_common_prefix_length[{i}] is longer than its key"
            )
        location = ValueRef(files[int(ids[i])], int(offsets[i]), int(lengths[i]))
        sums = int(num_keys[i]), int(tree_bytes[i]), int(indirect[i])
        children.append(NodeRef(keys[i], location, *sums))
    return InteriorNode(height, children, [prefix_bytes + int(c) for c in common])


def _used_files(cursor: Cursor, files: list[DataFile], count: int) -> NDArray[np.int64]:
    ids = cursor.column("data_file_id", count, max(0, len(files) - 1))
    for number in np.unique(ids):
        if number >= len(files):
            raise FormatError(f"{cursor.what}: data_file_id is {number}; the table is empty")
        check_data_path(files[number].path, cursor.what)
    return ids


def _file_ids(files: list[DataFile]) -> tuple[list[DataFile], list[int]]:
    table: dict[DataFile, int] = {}
    ids = [table.setdefault(f, len(table)) for f in files]
    return list(table), ids


def _split_keys(keys: list[bytes]) -> tuple[bytes, bytes, bytes]:
    lengths = np.fromiter((len(k) for k in keys), np.int64, len(keys))
    width = max(1, min(int(lengths.max()), _PREFIX_SCAN_BYTES))
    matrix = np.array([k[:width] for k in keys], f"S{width}").view(np.uint8).reshape(-1, width)
    differs = np.ones((len(keys) - 1, width + 1), bool)
    np.not_equal(matrix[1:], matrix[:-1], out=differs[:, :width])
    common = np.minimum(differs.argmax(axis=1), np.minimum(lengths[1:], lengths[:-1]))
    cuts = [0, *common.tolist()]
    tails = b"".join(k[c:] for k, c in zip(keys, cuts, strict=True))
    prefixes = encode_column(common.astype(np.uint64))
    suffixes = encode_column((lengths - np.asarray(cuts, np.int64)).astype(np.uint64))
    return prefixes, suffixes, tails


def _join_keys(
    cursor: Cursor, prefixes: NDArray[np.int64], suffixes: NDArray[np.int64], prefix: bytes
) -> list[bytes]:
    blob = cursor.take("key_suffix", int(suffixes.sum()))
    ends = np.cumsum(suffixes).tolist()
    keys: list[bytes] = []
    previous, start = b"", 0
    for shared, end in zip(prefixes.tolist(), ends, strict=True):
        if shared > len(previous):
            raise FormatError(
                f"{cursor.what}: key_prefix_length[{len(keys)}] is {shared}; the key before has "
                f"{len(previous)} bytes"
            )
        key = previous[:shared] + blob[start:end]
        if keys and key <= previous:
            raise FormatError(f"{cursor.what}: key {len(keys)} ({key[:80]!r}) is out of order")
        keys.append(key)
        previous, start = key, end
    return [prefix + key for key in keys] if prefix else keys
