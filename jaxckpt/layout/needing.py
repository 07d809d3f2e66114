"""Which processes need which regions of an array: what a restore shares the reads by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxckpt._types import Box
from jaxckpt.layout.partition import Partition

Group = tuple[int, ...]
"""Process indices, ascending."""


@dataclass(frozen=True)
class Needing:
    """What the processes of the job need of one leaf; the same on every process.

    Attributes:
        shape: of the leaf.
        everybody: the processes that need anything.
        partition: of the regions that they need; None where each needs all of it.
    """

    shape: tuple[int, ...]
    everybody: Group
    partition: Partition | None = None

    def group(self, chunk: Box) -> Group:
        """The processes that need any element of a chunk."""
        part = self.partition
        if part is None or 0 in part.shape:
            return self.everybody
        rows = part.holders.process[list(_tiles_meeting(part, chunk))]
        return tuple(sorted(set(rows.reshape(-1).tolist())))

    def most_elements(self) -> int:
        """What the process that needs most needs."""
        part = self.partition
        if part is None or 0 in part.shape:
            return math.prod(self.shape)
        rows = np.sort(part.holders.process, axis=1)
        first = np.ones(rows.shape, bool)
        first[:, 1:] = rows[:, 1:] != rows[:, :-1]
        return math.prod(part.tile) * int(np.bincount(rows[first]).max())


def _tiles_meeting(part: Partition, chunk: Box) -> Iterable[int]:
    """Numbers of the tiles that share elements with a chunk, in C order."""
    ranges = [
        range(a // n, -(-b // n))
        for a, b, n in zip(chunk.start, chunk.stop, part.tile, strict=True)
    ]
    for place in itertools.product(*ranges):
        number = 0
        for p, k in zip(place, part.counts, strict=True):
            number = number * k + p
        yield number
