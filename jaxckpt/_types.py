"""The frozen nouns that the layers hand to one another.

Owns: Box, Span, Processes and the kinds of a leaf. Knows nothing of files, devices or jax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

KeyKind = Literal["key", "int", "index", "attr"]
"""How a node reaches a child: dict key of type str, dict key of type int, position, attribute."""

PathEntry = tuple[KeyKind, str]
"""One step from the root of a tree towards a leaf."""

LeafKind = Literal[
    "jax", "numpy", "prng", "npscalar", "int", "float", "complex", "bool", "str", "none", "empty"
]
"""What a leaf was in the saved tree; ``empty`` is a container without children."""

ARRAY_KINDS: frozenset[str] = frozenset({"jax", "numpy", "prng", "npscalar"})
"""Kinds whose exact bytes lie in Zarr arrays; the others lie exactly in the sidecar."""


def _own_process(device: Any) -> int:
    return int(device.process_index)


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of the job, as plans see them.

    Attributes:
        index, count: of this process, and how many there are.
        of: the process of a device; jax's own, unless a test lets threads play processes.
    """

    index: int = 0
    count: int = 1
    of: Callable[[Any], int] = _own_process


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular region of an array: ``start[i] <= index[i] < stop[i]`` for each axis i."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """The common region, or None when it has no elements."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def slices_within(self, outer: Box) -> tuple[slice, ...]:
        """Index of this region in an array that holds exactly ``outer``."""
        return tuple(
            slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, outer.start, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Where the bytes of a value lie: a data file (path relative to the item) and a range of it."""

    file: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One stored leaf.

    Attributes:
        name: the path joined by dots; the prefix of its keys in the database.
        path: the steps from the root of the tree.
        kind: what it was in the saved tree.
        shape: the shape in the saved tree (of the key array for ``prng``); () for values.
        dtype: the dtype's name in the saved tree (``uint32`` for ``prng``); "" for values.
        stored_shape: the shape of the Zarr array; a ``prng`` leaf has its key words behind.
        chunk_shape: the shape of the Zarr chunks.
        impl: the PRNG implementation's name for ``prng``, else "".
        value: the exact text of a value that is no array, else "".
        sharding: a readable description of the sharding it was saved from, else None.
        crcs: the crc32c of each stored chunk, 4 bytes little-endian each, in C order of the chunk
            grid; empty where there are no checksums. A chunk also carries its own; these tie it
            to its place, so that a chunk that lies elsewhere is noticed.
    """

    name: str
    path: tuple[PathEntry, ...]
    kind: LeafKind
    shape: tuple[int, ...] = ()
    dtype: str = ""
    stored_shape: tuple[int, ...] = ()
    chunk_shape: tuple[int, ...] = ()
    impl: str = ""
    value: str = ""
    sharding: str | None = None
    crcs: bytes = b""
