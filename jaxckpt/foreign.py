"""Items that stock orbax wrote, in any of its layouts: TensorStore reads the bytes.

Its files are checked first, with our own bounds, for what would make TensorStore allocate without
limit or leave the directory: it trusts more than it should. They hold no checksum of array data,
so a flipped bit there goes unseen; that is orbax's format, and a reason to save with ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorstore as ts

from jaxckpt._types import Box, LeafKind, LeafSpec, PathEntry
from jaxckpt.errors import DamagedCheckpointError, NotACheckpointError, StorageError
from jaxckpt.format import orbaxmeta, strictjson
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.frame import FormatError
from jaxckpt.format.index import read_tree
from jaxckpt.format.limits import MAX_ARRAY_BYTES, MAX_JSON_BYTES, MAX_NODE_BYTES, MAX_TREE_DEPTH
from jaxckpt.format.manifest import MANIFEST_NAME, decode_manifest
from jaxckpt.format.tree import NodeKind, TreeNode
from jaxckpt.format.values import value_text
from jaxckpt.io.spans import read_span
from jaxckpt.io.store import Store, join, read_file

_EMPTY_KINDS = {"Dict": "dict", "List": "list", "Tuple": "tuple", "NamedTuple": "node"}
_PYTHON_DTYPES: dict[str, LeafKind] = {
    "int64": "int",
    "float64": "float",
    "complex128": "complex",
    "bool": "bool",
}
_UNSUSPICIOUS_BYTES = 1 << 30
_UNSUSPICIOUS_CHUNK_BYTES = 64 << 20
_LARGEST_RATIO = 1 << 15  # zstd packs zeros about this well


@dataclass(slots=True)
class ForeignItem:
    """An opened item of orbax's."""

    path: str
    tree: TreeNode
    leaves: list[LeafSpec]
    arrays: list[Any]

    def read(self, leaf: int, box: Box, out: np.ndarray) -> None:
        """Fills ``out`` with a region of a leaf."""
        index = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
        try:
            out[...] = self.arrays[leaf][index].read().result()
        except (ValueError, OverflowError) as error:
            raise DamagedCheckpointError(
                self.path, str(error)[:500], leaf=self.leaves[leaf].name
            ) from error


def open_foreign(store: Store, path: str) -> ForeignItem:
    """Opens an item directory by its ``_METADATA``.

    Raises:
        NotACheckpointError: there is none.
        DamagedCheckpointError: a file breaks orbax's form or the limits.
    """
    name = join(path, orbaxmeta.TREE_NAME)
    if store.stat(name) is None:
        raise NotACheckpointError(
            path,
            f"it has neither jaxckpt's sidecar nor {orbaxmeta.TREE_NAME}",
            "Give the directory of a saved state.",
        )
    try:
        tree = orbaxmeta.decode_tree(read_file(store, name, MAX_JSON_BYTES, path), name)
        names = [".".join(text for _, text in leaf.path) for leaf in tree.leaves]
        for text in names:
            if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
                raise FormatError(f"the leaf name {text[:200]!r} is refused")
        ocdbt = tree.use_ocdbt
        if ocdbt is None:
            ocdbt = store.stat(join(path, MANIFEST_NAME)) is not None
        stored = _check_ocdbt(store, path) if ocdbt else _check_files(store, path, names)
        impls = _key_impls(store, path)
        strings = _strings(store, path)
        item = ForeignItem(path, _tree_of([leaf.path for leaf in tree.leaves]), [], [])
        for leaf, leaf_name in zip(tree.leaves, names, strict=True):
            spec, array = _open_leaf(path, leaf, leaf_name, ocdbt, tree.use_zarr3, impls, strings)
            item.leaves.append(spec)
            item.arrays.append(array)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(str(error.filename or path), "the file is missing") from error
    except FormatError as error:
        raise DamagedCheckpointError(path, str(error)) from error
    _refuse_bombs(item, stored)
    return item


def _open_leaf(
    path: str,
    leaf: orbaxmeta.OrbaxLeaf,
    name: str,
    ocdbt: bool,
    zarr3: bool,
    impls: dict[str, str],
    strings: dict[str, str],
) -> tuple[LeafSpec, Any]:
    kind = leaf.value_type
    if kind == "None":
        return LeafSpec(name, leaf.path, "none"), None
    if kind in _EMPTY_KINDS:
        return LeafSpec(name, leaf.path, "empty", value=_EMPTY_KINDS[kind]), None
    if kind == "string":
        if name not in strings:
            raise FormatError(f"leaf '{name}' is a string, but {orbaxmeta.STRINGS_NAME} lacks it")
        return LeafSpec(name, leaf.path, "str", value=strings[name]), None
    array = _open_array(path, name, ocdbt, zarr3)
    dtype = str(array.dtype.name)
    if dtype not in DTYPES:
        raise FormatError(f"leaf '{name}' has dtype {dtype}")
    shape = tuple(array.shape)
    spec = LeafSpec(
        name,
        leaf.path,
        "jax",
        shape,
        dtype,
        shape,
        tuple(array.chunk_layout.read_chunk.shape or shape),
    )
    if name in impls:
        return replace(spec, kind="prng", shape=shape[:-1], impl=impls[name]), array
    if kind == "scalar" and shape == ():
        python = _PYTHON_DTYPES.get(dtype)
        if python is None:
            return replace(spec, kind="npscalar"), array
        try:
            value = array.read().result().item()
        except ValueError as error:
            raise FormatError(f"leaf '{name}': {str(error)[:300]}") from error
        return replace(spec, kind=python, value=value_text(value)), array
    return replace(spec, kind="numpy" if kind == "np.ndarray" else "jax"), array


def _open_array(path: str, name: str, ocdbt: bool, zarr3: bool) -> Any:
    base: dict[str, Any] = {"driver": "file", "path": path.rstrip("/") + "/"}
    if ocdbt:
        kvstore: dict[str, Any] = {"driver": "ocdbt", "base": base, "path": name}
        kvstore["path"] = name + "/" if name else ""
    else:
        kvstore = {"driver": "file", "path": join(path, name) + "/"}
    spec = {
        "driver": "zarr3" if zarr3 else "zarr",
        "kvstore": kvstore,
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,
    }
    try:
        return ts.open(ts.Spec(spec), open=True, read=True, context=_context()).result()
    except ValueError as error:
        raise DamagedCheckpointError(path, str(error)[:500], leaf=name) from error


def _context() -> Any:
    return ts.Context({"cache_pool": {"total_bytes_limit": 100_000_000}})


def _check_ocdbt(store: Store, path: str) -> int:
    """Walks the whole index with our own limits; returns how many bytes are stored."""
    name = join(path, MANIFEST_NAME)
    root = decode_manifest(read_file(store, name, MAX_NODE_BYTES, path), name)

    index = read_tree(root, lambda span: read_span(store, path, span))
    for file in index.files:
        store.open(join(path, file), direct=False, beneath=path).close()
    return int(index.lengths.sum())


def _check_files(store: Store, path: str, names: Sequence[str]) -> int:
    """Looks at each array's own directory; returns how many bytes are stored.

    No part of it may be a link: TensorStore would follow it.
    """
    for name in names:
        if any(part in (".", "..") for part in name.split("/")):
            raise FormatError(f"the leaf name {name[:200]!r} is refused: it has a part '.' or '..'")
    tops = {name.split("/")[0] for name in names}
    return sum(_checked_bytes(store, path, join(path, top)) for top in tops)


def _checked_bytes(store: Store, item: str, path: str, depth: int = 0) -> int:
    found = store.stat(path)
    if found is None:
        return 0
    if depth > MAX_TREE_DEPTH:
        raise FormatError(f"{path} is nested too deeply")
    if found.is_dir:
        entries = store.list_dir(path)
        return sum(_checked_bytes(store, item, join(path, e), depth + 1) for e in entries)
    try:
        store.open(path, direct=False, beneath=item).close()
    except StorageError as error:
        raise FormatError(f"{path} is a link or no regular file ({error})") from error
    return found.size


def _refuse_bombs(item: ForeignItem, stored: int) -> None:
    """Before any element is read: neither arrays nor chunks claim what can not be there."""
    for leaf, array in zip(item.leaves, item.arrays, strict=True):
        if array is None:
            continue
        itemsize = DTYPES[leaf.dtype].itemsize
        claimed = math.prod(leaf.stored_shape) * itemsize
        most = min(MAX_ARRAY_BYTES, max(_UNSUSPICIOUS_BYTES, stored * _LARGEST_RATIO))
        if claimed > most:
            raise DamagedCheckpointError(
                item.path, f"it claims {claimed} bytes, {stored} are stored in all", leaf=leaf.name
            )
        layout = array.chunk_layout
        for shape in (layout.read_chunk.shape, layout.write_chunk.shape):
            chunk = math.prod(shape or ()) * itemsize
            if chunk > max(claimed, _UNSUSPICIOUS_CHUNK_BYTES):
                raise DamagedCheckpointError(
                    item.path, f"its chunks claim {chunk} bytes each", leaf=leaf.name
                )


def _key_impls(store: Store, path: str) -> dict[str, str]:
    folder = join(path, orbaxmeta.ARRAYS_DIR)
    found = store.stat(folder)
    impls: dict[str, str] = {}
    for entry in sorted(store.list_dir(folder)) if found and found.is_dir else []:
        file = join(folder, entry)
        impls |= orbaxmeta.decode_key_impls(read_file(store, file, MAX_JSON_BYTES, path), file)
    return impls


def _strings(store: Store, path: str) -> dict[str, str]:
    file = join(path, orbaxmeta.STRINGS_NAME)
    if store.stat(file) is None:
        return {}
    doc = strictjson.parse(read_file(store, file, MAX_JSON_BYTES, path), file)
    if not isinstance(doc, dict):
        raise FormatError(f"{file} is no JSON object")
    return {str(k): str(v) for k, v in doc.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _tree_of(paths: Sequence[tuple[PathEntry, ...]]) -> TreeNode:
    """The tree that flat paths describe: lists where keys are positions, dicts elsewhere."""

    def node(depth: int, members: list[int]) -> TreeNode:
        if len(members) == 1 and len(paths[members[0]]) == depth:
            return TreeNode("leaf", leaf=members[0])
        groups: dict[PathEntry, list[int]] = {}
        for number in members:
            if len(paths[number]) <= depth:
                raise FormatError(f"the path {paths[number]!r} is a leaf and a container")
            groups.setdefault(paths[number][depth], []).append(number)
        keys = tuple(groups)
        kind: NodeKind = "list" if all(k == "index" for k, _ in keys) else "dict"
        if kind == "list":
            keys = tuple(sorted(keys, key=lambda k: int(k[1])))
        return TreeNode(kind, -1, "", keys, tuple(node(depth + 1, groups[k]) for k in keys))

    return node(0, list(range(len(paths)))) if paths else TreeNode("dict")
