"""A whole OCDBT index: a B+tree built from sorted entries, and read back into columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import Span
from jaxckpt.format.btree import (
    InteriorNode,
    LeafNode,
    NodeRef,
    ValueRef,
    decode_node,
    encode_interior,
    encode_leaf,
)
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_INDEX_BYTES, MAX_KEYS, MAX_NODE_BYTES, MAX_NODES
from jaxckpt.format.manifest import Root

Entry = tuple[bytes, bytes | ValueRef]

_NODE_TARGET_BYTES = 1 << 20
_NODE_TARGET_ENTRIES = 1 << 15
_ENTRY_OVERHEAD_BYTES = 24


@dataclass(slots=True)
class Index:
    """All keys of a database, sorted, with where each value lies.

    Attributes:
        files: paths of the data files, relative to the item.
        keys: all keys, ascending.
        file_ids: row of ``files`` for each key; -1 where the value is in ``inline``.
        offsets, lengths: the byte range in the file.
        inline: small values by row.
    """

    files: list[str]
    keys: list[bytes]
    file_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    inline: dict[int, bytes]
    _rows: dict[bytes, int] | None = None

    def find(self, key: bytes) -> bytes | Span | None:
        """The value of a key, or where it lies; None when the key is not there."""
        if self._rows is None:
            self._rows = {k: i for i, k in enumerate(self.keys)}
        row = self._rows.get(key)
        if row is None:
            return None
        if row in self.inline:
            return self.inline[row]
        return Span(
            self.files[int(self.file_ids[row])], int(self.offsets[row]), int(self.lengths[row])
        )


def build_tree(entries: Sequence[Entry], file: DataFile, offset: int) -> tuple[bytes, Root]:
    """Encodes all nodes for a file that holds them from ``offset`` on.

    Args:
        entries: sorted by key, each key once.
        file: the data file that the bytes will be written to.

    Returns:
        The bytes, and the root that a manifest refers to.
    """
    blobs: list[bytes] = []
    position = offset

    def place(node: bytes) -> ValueRef:
        nonlocal position
        blobs.append(node)
        position += len(node)
        return ValueRef(file, position - len(node), len(node))

    level: list[NodeRef] = []
    for group in _groups(entries):
        location = place(encode_leaf(group))
        indirect = sum(v.length for _, v in group if isinstance(v, ValueRef))
        level.append(NodeRef(group[0][0], location, len(group), location.length, indirect))
    height = 0
    while len(level) > 1:
        height += 1
        parents: list[NodeRef] = []
        for i in range(0, len(level), _NODE_TARGET_ENTRIES):
            part = level[i : i + _NODE_TARGET_ENTRIES]
            location = place(encode_interior(height, part))
            parents.append(
                NodeRef(
                    part[0].key,
                    location,
                    sum(c.num_keys for c in part),
                    location.length + sum(c.tree_bytes for c in part),
                    sum(c.indirect_bytes for c in part),
                )
            )
        level = parents
    top = level[0]
    return b"".join(blobs), Root(
        height, top.location, top.num_keys, top.tree_bytes, top.indirect_bytes
    )


def _groups(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    groups: list[Sequence[Entry]] = []
    start = size = 0
    for i, (key, value) in enumerate(entries):
        if i and key <= entries[i - 1][0]:
            raise FormatError(f"key {key[:80]!r} is there twice or out of order")
        own = len(key) + _ENTRY_OVERHEAD_BYTES
        own += 0 if isinstance(value, ValueRef) else len(value)
        if i > start and (size + own > _NODE_TARGET_BYTES or i - start >= _NODE_TARGET_ENTRIES):
            groups.append(entries[start:i])
            start, size = i, 0
        size += own
    groups.append(entries[start:])
    return groups


def merge_entries(parts: Sequence[tuple[str, Index]], empty_key: bytes) -> list[Entry]:
    """All entries of several databases, sorted; `build_tree` refuses a key that is in two.

    Args:
        parts: each database's directory, with a slash behind, and its index.
        empty_key: what a database without keys of its own has; left out where others have some.
    """
    entries: list[Entry] = []
    for home, index in parts:
        files = [DataFile("", home + path) for path in index.files]
        rows = zip(
            index.keys,
            index.file_ids.tolist(),
            index.offsets.tolist(),
            index.lengths.tolist(),
            strict=True,
        )
        inline = index.inline
        entries += [
            (key, inline[row] if file < 0 else ValueRef(files[file], offset, length))
            for row, (key, file, offset, length) in enumerate(rows)
            if key != empty_key
        ]
    entries.sort(key=operator.itemgetter(0))
    return entries or [(empty_key, b"1")]


def read_tree(root: Root, fetch: Callable[[Span], bytes]) -> Index:
    """Walks the tree below a root.

    Args:
        root: from a manifest.
        fetch: reads a span of a data file, checking that it lies inside the file.
    """
    if root.location is None:
        empty = np.zeros(0, np.int64)
        return Index([], [], empty, empty, empty, {})
    leaves: list[LeafNode] = []
    stack: list[tuple[ValueRef, int, bytes]] = [(root.location, root.height, b"")]
    nodes = total = keys = 0
    while stack:
        location, height, prefix = stack.pop()
        nodes, total = nodes + 1, total + location.length
        what = f"node {location.file.path}:{location.offset}+{location.length}"
        if nodes > MAX_NODES or total > MAX_INDEX_BYTES or location.length > MAX_NODE_BYTES:
            raise FormatError(f"{what}: the index is larger than the limits allow")
        data = fetch(Span(location.file.path, location.offset, location.length))
        node = decode_node(data, what, location.file.base, prefix)
        found = node.height if isinstance(node, InteriorNode) else 0
        if found != height:
            raise FormatError(f"{what}: height is {found}; its parent says {height}")
        if isinstance(node, LeafNode):
            keys += len(node.keys)
            if keys > MAX_KEYS:
                raise FormatError(f"{what}: more than {MAX_KEYS} keys")
            leaves.append(node)
            continue
        for child, cut in zip(reversed(node.children), reversed(node.prefix_lengths), strict=True):
            stack.append((child.location, height - 1, child.key[:cut]))
    return _join(leaves)


def _join(leaves: list[LeafNode]) -> Index:
    files: dict[str, int] = {}
    keys: list[bytes] = []
    inline: dict[int, bytes] = {}
    ids: list[NDArray[np.int64]] = []
    for leaf in leaves:
        if keys and leaf.keys[0] <= keys[-1]:
            raise FormatError(f"key {leaf.keys[0][:80]!r} of a node is out of order")
        table = np.array([files.setdefault(f.path, len(files)) for f in leaf.files] + [-1])
        ids.append(table[leaf.file_ids])
        inline.update({len(keys) + row: value for row, value in leaf.inline.items()})
        keys.extend(leaf.keys)
    return Index(
        list(files),
        keys,
        np.concatenate(ids),
        np.concatenate([leaf.offsets for leaf in leaves]),
        np.concatenate([leaf.lengths for leaf in leaves]),
        inline,
    )
