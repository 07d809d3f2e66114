"""The shape of a pytree as plain values, and its JSON form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from jaxckpt._types import PathEntry
from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_TREE_DEPTH

NodeKind = Literal["leaf", "dict", "list", "tuple", "node"]
_KINDS = ("dict", "list", "tuple", "node")
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,4000}")
_KEY_KINDS = ("key", "int", "index", "attr")


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of a saved tree.

    Attributes:
        kind: ``node`` stands for every registered type that is no plain container.
        leaf: the leaf's number for kind ``leaf``.
        type_name: ``module.Class`` for kind ``node``, for people; it is never imported.
        keys: how each child is reached; for list and tuple the positions.
        children: in the order of the keys.
    """

    kind: NodeKind
    leaf: int = -1
    type_name: str = ""
    keys: tuple[PathEntry, ...] = ()
    children: tuple[TreeNode, ...] = ()


def leaf_paths(root: TreeNode) -> list[tuple[int, tuple[PathEntry, ...]]]:
    """Number and path of each leaf, in the order of the tree."""
    paths: list[tuple[int, tuple[PathEntry, ...]]] = []

    def walk(node: TreeNode, path: tuple[PathEntry, ...]) -> None:
        if node.kind == "leaf":
            paths.append((node.leaf, path))
        for key, child in zip(node.keys, node.children, strict=True):
            walk(child, (*path, key))

    walk(root, ())
    return paths


def build(root: TreeNode, values: list[Any]) -> Any:
    """Puts leaf values into plain containers; a registered type becomes a dict or a list."""
    if root.kind == "leaf":
        return values[root.leaf]
    children = [build(child, values) for child in root.children]
    if root.kind == "list":
        return children
    if root.kind == "tuple":
        return tuple(children)
    if root.kind == "node" and root.keys and all(kind == "index" for kind, _ in root.keys):
        return children
    names = [int(name) if kind == "int" else name for kind, name in root.keys]
    return dict(zip(names, children, strict=True))


def to_json(node: TreeNode) -> object:
    """A number for a leaf, ``[kind, type, keys, children]`` for a node."""
    if node.kind == "leaf":
        return node.leaf
    keys: object = [list(k) for k in node.keys] if node.kind in ("dict", "node") else None
    return [node.kind, node.type_name, keys, [to_json(c) for c in node.children]]


def from_json(doc: object, what: str, depth: int = 0) -> TreeNode:
    """Reads ``to_json``'s form, refusing everything else."""
    if depth > MAX_TREE_DEPTH:
        raise FormatError(f"{what}: the tree is deeper than {MAX_TREE_DEPTH}")
    if isinstance(doc, int) and not isinstance(doc, bool):
        return TreeNode("leaf", leaf=doc)
    if not isinstance(doc, list) or len(cast("list[Any]", doc)) != 4:
        raise FormatError(f"{what}: a tree node is neither a number nor a list of four")
    kind, type_name, raw_keys, raw_children = cast("list[Any]", doc)
    if kind not in _KINDS or not isinstance(type_name, str) or not isinstance(raw_children, list):
        raise FormatError(f"{what}: a tree node has kind {kind!r}; known are {_KINDS}")
    children = tuple(from_json(c, what, depth + 1) for c in cast("list[object]", raw_children))
    if kind in ("list", "tuple"):
        keys: tuple[PathEntry, ...] = tuple(("index", str(i)) for i in range(len(children)))
    else:
        keys = tuple(_key_from_json(k, what) for k in cast("list[Any]", raw_keys or []))
    if len(keys) != len(children) or len(set(keys)) != len(keys):
        raise FormatError(f"{what}: a tree node has {len(children)} children, keys {keys!r:.200}")
    return TreeNode(kind, -1, type_name, keys, children)


def _key_from_json(doc: Any, what: str) -> PathEntry:
    if isinstance(doc, list):
        pair = cast("list[Any]", doc)
        if len(pair) == 2 and pair[0] in _KEY_KINDS and isinstance(pair[1], str):
            if pair[0] in ("int", "index") and not _NUMBER.fullmatch(pair[1]):
                raise FormatError(f"{what}: the tree key {pair!r:.200} is no number")
            if any("\ud800" <= c <= "\udfff" for c in pair[1]):
                raise FormatError(f"{what}: the tree key {pair!r:.200} is not valid Unicode")
            return pair[0], pair[1]
    raise FormatError(f"{what}: {doc!r:.200} is no tree key")
