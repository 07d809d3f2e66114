"""Leaves that are alike for the planner, and how their regions are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxckpt.format.dtypes import DTYPES
from jaxckpt.layout.chunking import choose_chunk_shape, grid_counts, is_whole
from jaxckpt.layout.groups import ProcessGroups
from jaxckpt.layout.partition import Partition


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """An array to save, as the planner sees it: the leaf's number, its partition and dtype."""

    number: int
    partition: Partition
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """Leaves of one shape, partition and size of element.

    Attributes:
        groups: the processes that hold each region; of a small leaf those that hold all of it.
        holders_key: the same for kinds with the same groups.
        assembled: a leaf is one chunk although it has several regions.
        leaves: their places in the list of all leaves.
    """

    partition: Partition
    itemsize: int
    groups: ProcessGroups
    holders_key: tuple[bytes, bool]
    assembled: bool
    leaves: list[int]


@dataclass(frozen=True, slots=True)
class Cut:
    """The chunk shape of a kind.

    Attributes:
        chunks: of one region along each axis.
        split: whether chunks are dealt one by one, and not whole regions.
    """

    kind: Kind
    chunk_shape: tuple[int, ...]
    chunks: tuple[int, ...]
    split: bool

    @property
    def chunk_bytes(self) -> int:
        """Stored bytes of a chunk; all chunks are stored whole."""
        return math.prod(self.chunk_shape) * self.kind.itemsize

    @property
    def region_bytes(self) -> int:
        """Stored bytes of a region."""
        return math.prod(self.chunks) * self.chunk_bytes

    @property
    def units(self) -> int:
        """How many units of a region are dealt."""
        return math.prod(self.chunks) if self.split else 1


def kinds_of(leaves: Sequence[ArrayLeaf]) -> list[Kind]:
    """The kinds of all leaves that have elements, in order of the first leaf of each."""
    kinds: dict[tuple[object, ...], Kind] = {}
    for place, leaf in enumerate(leaves):
        part, itemsize = leaf.partition, DTYPES[leaf.dtype].itemsize
        if 0 in part.shape:
            continue
        # By content, not identity: what is one object here may be two in another process.
        key = (part.holders.key, part.shape, part.counts, itemsize)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _kind(part, itemsize)
        kind.leaves.append(place)
    return list(kinds.values())


def _kind(part: Partition, itemsize: int) -> Kind:
    groups, whole = part.holders.groups, is_whole(part, itemsize)
    if whole:
        groups = groups.common or groups
    assembled = whole and math.prod(part.counts) > 1
    return Kind(part, itemsize, groups, (part.holders.key, whole), assembled, [])


def cut_whole(kind: Kind, max_bytes: int) -> Cut:
    """A cut into chunks, the regions to be dealt whole."""
    part = kind.partition
    return cut_into(kind, choose_chunk_shape(part, kind.itemsize, max_bytes), split=False)


def cut_into(kind: Kind, chunk_shape: tuple[int, ...], *, split: bool) -> Cut:
    """A cut into chunks of a shape that fits all regions."""
    region = kind.partition.shape if kind.assembled else kind.partition.tile
    return Cut(kind, chunk_shape, grid_counts(region, chunk_shape), split)
