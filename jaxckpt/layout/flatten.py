"""From a pytree to named leaves and a plain description of the tree, and target trees likewise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import tree_util

from jaxckpt._types import PathEntry
from jaxckpt.errors import InvalidOptionsError, UnsupportedLeafError
from jaxckpt.format.limits import MAX_KEY_BYTES, MAX_TREE_DEPTH
from jaxckpt.format.tree import NodeKind, TreeNode

Path = tuple[PathEntry, ...]
_MAX_NAME_BYTES = MAX_KEY_BYTES - 1024  # the rest is for the position of a chunk
_PLAIN_LEAVES: tuple[type, ...] = (jax.Array, np.ndarray, np.generic, int, float, complex, str)


class EmptyNode:
    """Stands for a container without children; ``kind`` is dict, list, tuple or node."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


@dataclass(frozen=True, slots=True)
class FlatTree:
    """A tree to save: its description, and path and value of each leaf by number."""

    root: TreeNode
    leaves: list[tuple[Path, Any]]


def path_text(path: Path) -> str:
    """The leaf's name as people and databases read it; ``<root>`` for a bare leaf."""
    return ".".join(name for _, name in path) or "<root>"


def flatten(tree: Any) -> FlatTree:
    """Walks a tree in jax's own order.

    Raises:
        UnsupportedLeafError: a dict key is neither str nor int, keys can not be ordered, two
            leaves have the same name, or the tree is too deep.
    """
    leaves: list[tuple[Path, Any]] = []

    def walk(x: Any, path: Path) -> TreeNode:
        if len(path) > MAX_TREE_DEPTH:
            raise UnsupportedLeafError(
                path_text(path), f"the tree is deeper than {MAX_TREE_DEPTH}", "Make it flatter."
            )
        split = None if x is None or isinstance(x, _PLAIN_LEAVES) else _one_level(x, path)
        if split is None or not split.children:
            leaves.append((path, x if split is None else EmptyNode(split.kind)))
            return TreeNode("leaf", leaf=len(leaves) - 1)
        children = tuple(
            walk(child, (*path, key)) for key, child in zip(split.keys, split.children, strict=True)
        )
        return TreeNode(split.kind, -1, split.type_name, split.keys, children)

    root = walk(tree, ())
    _refuse_equal_names([path for path, _ in leaves])
    return FlatTree(root, leaves)


@dataclass(frozen=True, slots=True)
class FlatTarget:
    """A target tree taken apart.

    Attributes:
        leaves: path and leaf, an empty container as `EmptyNode`.
        own: the same leaves as they are in the target.
        treedef: takes as many values back.
    """

    leaves: list[tuple[Path, Any]]
    own: list[Any]
    treedef: Any


def flatten_target(target: Any) -> FlatTarget:
    """Leaves of a target tree with their paths, None and empty containers among them."""

    def stops(x: Any) -> bool:
        if x is None:
            return True
        if isinstance(x, _PLAIN_LEAVES) or (isinstance(x, dict | list | tuple) and x):
            return False
        split = _one_level(x, ())
        return split is not None and not split.children

    try:
        raw, treedef = tree_util.tree_flatten_with_path(target, is_leaf=stops)
    except (ValueError, TypeError) as error:
        raise InvalidOptionsError("target", type(target).__name__, f"a pytree ({error})") from error
    leaves: list[tuple[Path, Any]] = []
    for keys, value in raw:
        path = tuple(_entry(k, ()) for k in keys)
        leaf = value
        if value is not None and not isinstance(value, _PLAIN_LEAVES):
            split = _one_level(value, path)
            leaf = value if split is None else EmptyNode(split.kind)
        leaves.append((path, leaf))
    return FlatTarget(leaves, [value for _, value in raw], treedef)


@dataclass(frozen=True, slots=True)
class _Split:
    kind: NodeKind
    type_name: str
    keys: tuple[PathEntry, ...]
    children: Sequence[Any]


def _one_level(x: Any, path: Path) -> _Split | None:
    """The children of a node; None for a leaf."""
    kind_of = type(x)
    if kind_of is list or kind_of is tuple:
        keys = tuple(("index", str(i)) for i in range(len(x)))
        return _Split("list" if kind_of is list else "tuple", "", cast("Any", keys), x)
    if kind_of is dict:
        names = list(x)
        try:
            names.sort()
        except TypeError as error:
            raise UnsupportedLeafError(
                path_text(path),
                f"its dict keys can not be ordered ({error})",
                "Use keys of one type, str or int.",
            ) from error
        keys = tuple(_dict_entry(n, path) for n in names)
        return _Split("dict", "", keys, [x[n] for n in names])
    pairs, _ = tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    keys = tuple(_entry(k[0], path) for k, _ in pairs)
    name = f"{kind_of.__module__}.{kind_of.__qualname__}"
    return _Split("node", name, keys, [child for _, child in pairs])


def _entry(key: Any, path: Path) -> PathEntry:
    if isinstance(key, tree_util.DictKey):
        return _dict_entry(key.key, path)
    if isinstance(key, tree_util.SequenceKey):
        return ("index", str(key.idx))
    if isinstance(key, tree_util.GetAttrKey):
        return ("attr", key.name)
    if isinstance(key, tree_util.FlattenedIndexKey):
        return ("index", str(key.key))
    raise UnsupportedLeafError(
        path_text(path),
        f"its container names children by {type(key).__name__}",
        "Register the container with jax's own key types.",
    )


def _dict_entry(name: Any, path: Path) -> PathEntry:
    if type(name) is int:
        return ("int", str(name))
    if type(name) is str:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            size = MAX_KEY_BYTES
        if size < MAX_KEY_BYTES // 4:
            return ("key", name)
        raise UnsupportedLeafError(
            path_text(path),
            "a dict key is not valid Unicode or has more than 16 KiB",
            "Choose a shorter, printable key.",
        )
    raise UnsupportedLeafError(
        path_text((*path, ("key", repr(name)))),
        f"the dict key {name!r} has type {type(name).__name__}",
        "Use keys of type str or int.",
    )


def _refuse_equal_names(paths: Iterable[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        name = ".".join(text for _, text in path)
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise UnsupportedLeafError(
                name[:80] + "...", f"its name has over {_MAX_NAME_BYTES} bytes", "Shorten the keys."
            )
        other = seen.setdefault(name, path)
        if other is not path:
            raise UnsupportedLeafError(
                path_text(path),
                f"it has the same dotted name as the leaf at {[n for _, n in other]!r}, and "
                "readers of orbax checkpoints find leaves by that name",
                "Rename one of the dict keys.",
            )
