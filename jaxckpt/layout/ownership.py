"""Which process writes what: whole regions where that stays level, parts of large ones elsewhere.

Up to three attempts, until one is level enough; else the most level one is taken:

1. every region whole;
2. regions of more than 4 % of a process's mean in parts, so many that the holders share evenly;
3. these in finer parts.

In each, what has only one holder is counted first, then parts are dealt, then whole regions, the
largest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.layout.chunking import fine_chunk_shape, split_chunk_shape
from jaxckpt.layout.dealing import Batch, Loads, deal
from jaxckpt.layout.groups import NOBODY, ProcessGroups
from jaxckpt.layout.kinds import Cut, Kind, cut_into, cut_whole

_LEVEL = 1.04
"""How much more than in an ideal deal a process may write."""
_LARGE = 25  # a region is large from this part of the mean on
_FINE = 32


@dataclass(frozen=True, slots=True)
class Deal:
    """A deal of everything.

    Attributes:
        loads: bytes by process.
        cuts: of every kind, in their order.
        owners: by place of the leaf, the process of each unit: [regions, units of each].
    """

    loads: Loads
    cuts: list[Cut]
    owners: dict[int, NDArray[np.int32]]

    @property
    def highest(self) -> int:
        return int(self.loads[:-1].max(initial=0))


def deal_kinds(kinds: Sequence[Kind], chunk_bytes: int) -> Deal:
    """Cuts and deals all leaves."""
    whole = [cut_whole(kind, chunk_bytes) for kind in kinds]
    best = _deal(whole)
    mean = _mean(whole)
    if best.highest <= _LEVEL * mean:
        return best
    enough = _LEVEL * max(mean, _least(whole))
    for fine in (False, True):
        if best.highest <= enough:
            break
        cuts = [_split(c, chunk_bytes, mean, fine=fine) if _large(c, mean) else c for c in whole]
        made = _deal(cuts)
        if made.highest < best.highest:
            best = made
    return best


def _deal(cuts: list[Cut]) -> Deal:
    """Deals all kinds; those that have the same holders and units of one size together."""
    together: dict[tuple[object, ...], list[Cut]] = {}
    for cut in cuts:
        key = (cut.kind.holders_key, cut.split, cut.units, cut.region_bytes)
        together.setdefault(key, []).append(cut)
    batches: list[Batch] = []
    places: list[list[int]] = []
    for same in sorted(together.values(), key=_turn):
        cut = same[0]
        places.append(sorted(place for c in same for place in c.kind.leaves))
        nbytes = cut.region_bytes // cut.units
        batches.append(Batch(cut.kind.groups, len(places[-1]), cut.units, nbytes))
    loads, dealt = deal(batches)
    owners: dict[int, NDArray[np.int32]] = {}
    for own, of_batch in zip(places, dealt, strict=True):
        owners.update(zip(own, of_batch, strict=True))
    return Deal(loads, cuts, owners)


def _turn(same: list[Cut]) -> tuple[bool, int]:
    cut = same[0]
    return not cut.split, -(cut.region_bytes // cut.units)


def _large(cut: Cut, mean: int) -> bool:
    shared = bool(cut.kind.groups.rounds) and not cut.kind.assembled
    return shared and cut.region_bytes * _LARGE > mean


def _split(cut: Cut, chunk_bytes: int, mean: int, *, fine: bool) -> Cut:
    kind, shape = cut.kind, None
    if not fine:
        shape = split_chunk_shape(kind.partition, kind.itemsize, chunk_bytes, _share(kind))
    if shape is None:
        target = min(chunk_bytes, mean // _FINE)
        shape = fine_chunk_shape(kind.partition, kind.itemsize, target)
    return cut_into(kind, shape or cut.chunk_shape, split=True)


def _share(kind: Kind) -> int:
    """Of how many parts, or a multiple, a region must be for its group to share evenly."""
    sizes, regions = kind.groups.sizes.tolist(), kind.groups.regions.tolist()
    pairs = Counter(pair for pair in zip(sizes, regions, strict=True) if pair[0] > 1)
    size, held = pairs.most_common(1)[0][0]
    return size // math.gcd(size, held * len(kind.leaves))


def _mean(cuts: list[Cut]) -> int:
    """Bytes for each process that holds anything."""
    members = [g.members.reshape(-1) for g, _ in _by_groups(cuts)]
    processes = np.unique(np.concatenate([np.zeros(0, np.int32), *members]))
    total = sum(c.region_bytes * len(c.kind.groups.of_region) * len(c.kind.leaves) for c in cuts)
    return total // max(1, int(np.count_nonzero(processes != NOBODY)))


def _least(cuts: list[Cut]) -> int:
    """What some process writes in any deal: members of a group share what only they hold."""
    by_groups = _by_groups(cuts)
    most = max((int(g.members.max()) for g, _ in by_groups), default=0)
    single = np.zeros(most + 1, np.int64)
    shared: Counter[bytes] = Counter()
    for groups, nbytes in by_groups:
        alone = groups.sizes == 1
        np.add.at(single, groups.members[alone, 0], groups.regions[alone] * nbytes)
        for number in np.flatnonzero(~alone).tolist():
            row = groups.members[number]
            shared[row[row != NOBODY].tobytes()] += int(groups.regions[number]) * nbytes
    least = int(single.max(initial=0))
    for key, nbytes in shared.items():
        members = np.frombuffer(key, np.int32)
        least = max(least, (nbytes + int(single[members].sum())) // members.size)
    return least


def _by_groups(cuts: list[Cut]) -> list[tuple[ProcessGroups, int]]:
    """The distinct groups, and the bytes of the regions that lie on them, one of each leaf."""
    found: dict[tuple[bytes, bool], tuple[ProcessGroups, int]] = {}
    for cut in cuts:
        key = cut.kind.holders_key
        groups, nbytes = found.get(key, (cut.kind.groups, 0))
        found[key] = groups, nbytes + cut.region_bytes * len(cut.kind.leaves)
    return list(found.values())
