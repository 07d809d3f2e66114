"""The manifest of an OCDBT database: its configuration and the root of its newest version."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from jaxckpt.format.btree import ValueRef
from jaxckpt.format.cursor import Cursor
from jaxckpt.format.datafiles import check_data_path, decode_table, encode_table
from jaxckpt.format.frame import MANIFEST_MAGIC, FormatError, decode_frame, encode_frame
from jaxckpt.format.limits import MAX_INLINE_BYTES, MAX_TREE_HEIGHT
from jaxckpt.format.varint import encode_column

MANIFEST_NAME = "manifest.ocdbt"
_MAX_DECODED_NODE_BYTES = 8 << 20
_VERSION_TREE_ARITY_LOG2 = 4
MISSING_OFFSET = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Root:
    """The newest version: where its root node lies; ``location`` is None for an empty database."""

    height: int
    location: ValueRef | None
    num_keys: int
    tree_bytes: int
    indirect_bytes: int


def encode_manifest(uuid: bytes, root: Root, commit_time_ns: int) -> bytes:
    """A manifest with a single version, uncompressed.

    Args:
        uuid: 16 random bytes that name the database.
        root: the root node; must have a location.
        commit_time_ns: nanoseconds since 1970, as TensorStore writes them.
    """
    assert root.location is not None
    assert len(uuid) == 16
    config = (
        uuid
        + encode_column([0, MAX_INLINE_BYTES, _MAX_DECODED_NODE_BYTES])
        + bytes([_VERSION_TREE_ARITY_LOG2])
        + encode_column([0])
    )
    version = (
        encode_column([1, 1])
        + bytes([root.height])
        + encode_column([0, root.location.offset, root.location.length])
        + encode_column([root.num_keys, root.tree_bytes, root.indirect_bytes])
        + struct.pack("<Q", commit_time_ns)
    )
    return encode_frame(
        MANIFEST_MAGIC, config + encode_table([root.location.file]) + version + encode_column([0])
    )


def decode_manifest(data: bytes, what: str) -> Root:
    """Reads the newest version of a manifest; older versions are passed over."""
    cursor = Cursor(decode_frame(MANIFEST_MAGIC, data, what), what)
    cursor.take("uuid", 16)
    kind = cursor.number("manifest_kind", 2**32)
    if kind != 0:
        raise FormatError(f"{what}: manifest_kind is {kind}; only 0 (single file) is read")
    cursor.number("max_inline_value_bytes", 2**63 - 1)
    cursor.number("max_decoded_node_bytes", 2**63 - 1)
    cursor.number("version_tree_arity_log2", 63)
    compression = cursor.number("compression_method", 2**32)
    if compression == 1:
        cursor.take("compression_level", 4)
    elif compression != 0:
        raise FormatError(f"{what}: compression_method is {compression}; known are 0 and 1")
    files = decode_table(cursor, "")
    count = cursor.number("num_versions", 1 << 20)
    if count == 0:
        return Root(0, None, 0, 0, 0)
    cursor.column("generation_number", count)
    heights = cursor.column("root_height", count, MAX_TREE_HEIGHT)
    ids = cursor.column("data_file_id", count, max(0, len(files) - 1))
    # A version without a root node has the largest possible offset and length; as int64, -1.
    offsets = cursor.column("data_file_offset", count, MISSING_OFFSET)
    lengths = cursor.column("data_file_length", count, MISSING_OFFSET)
    num_keys = cursor.column("num_keys", count)
    tree_bytes = cursor.column("num_tree_bytes", count)
    indirect = cursor.column("num_indirect_value_bytes", count)
    last = count - 1
    sums = int(num_keys[last]), int(tree_bytes[last]), int(indirect[last])
    if int(offsets[last]) < 0 or int(lengths[last]) < 0 or not files:
        return Root(0, None, *sums)
    check_data_path(files[int(ids[last])].path, what)
    location = ValueRef(files[int(ids[last])], int(offsets[last]), int(lengths[last]))
    return Root(int(heights[last]), location, *sums)
