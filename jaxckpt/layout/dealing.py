"""Deals equal units of bytes to the processes that hold them, so that the loads stay level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.layout.groups import NOBODY, ProcessGroups

_FEW = 8
_CLOSED = np.int64(1 << 62)
"""The load of ``NOBODY``, who is never the least loaded."""

Loads = NDArray[np.int64]
"""Bytes by process number; the last entry, which ``NOBODY`` is the index of, stays closed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Units of one size: of arrays that lie on the same groups, for each region some in a row.

    Attributes:
        groups: who holds each region.
        arrays: how many arrays.
        units: how many units each region has.
        nbytes: of one unit.
    """

    groups: ProcessGroups
    arrays: int
    units: int
    nbytes: int


def deal(batches: Sequence[Batch]) -> tuple[Loads, list[NDArray[np.int32]]]:
    """Deals batches one after another; what only one process holds is counted before all else.

    Returns:
        The loads, and for each batch the process of each unit: [arrays, regions, units]. The
        units of a group that a process gets stand in a row.
    """
    processes = 1 + max((int(b.groups.members.max()) for b in batches), default=-1)
    loads = np.zeros(processes + 1, np.int64)
    loads[NOBODY] = _CLOSED
    for batch in batches:
        single = batch.groups.sizes == 1
        per_region = batch.arrays * batch.units * batch.nbytes
        owners = batch.groups.members[single, 0]
        np.add.at(loads, owners, batch.groups.regions[single] * per_region)
    return loads, [_deal_batch(loads, batch) for batch in batches]


def _deal_batch(loads: Loads, batch: Batch) -> NDArray[np.int32]:
    groups = batch.groups
    if len(groups.of_region) == 1 and batch.arrays * batch.units <= _FEW:
        return _deal_few(loads, batch)
    counts = groups.regions * (batch.arrays * batch.units)
    quotas = np.zeros(groups.members.shape, np.int64)
    quotas[:, 0] = counts
    for numbers in groups.rounds:
        members = groups.members[numbers]
        level = loads[members]
        own = fill(level, counts[numbers], batch.nbytes)
        quotas[numbers] = own
        loads[members] = level + own * batch.nbytes
    owners = np.repeat(groups.members.reshape(-1), quotas.reshape(-1))
    return _in_place(owners, batch)


def _deal_few(loads: Loads, batch: Batch) -> NDArray[np.int32]:
    """The same one by one: tens of thousands of leaves may all differ in size."""
    members = batch.groups.members[0]
    owners = np.full(batch.arrays * batch.units, members[0])
    if len(members) > 1:
        for i in range(owners.size):
            owners[i] = members[loads[members].argmin()]
            loads[owners[i]] += batch.nbytes
        owners.sort()
    return owners.reshape(batch.arrays, 1, batch.units)


def _in_place(owners: NDArray[np.int32], batch: Batch) -> NDArray[np.int32]:
    """From the order of groups, then arrays, to the order of arrays, then regions."""
    groups, arrays, units = batch.groups, batch.arrays, batch.units
    regions = len(groups.of_region)
    if len(groups.members) == 1:
        return owners.reshape(arrays, regions, units)
    out = np.empty((arrays, regions, units), np.int32)
    each = groups.regions
    if (each == each[0]).all():
        sorted_ = owners.reshape(len(each), arrays, -1, units).transpose(1, 0, 2, 3)
        out[:, groups.by_group] = sorted_.reshape(arrays, regions, units)
    else:
        order = np.argsort(np.tile(groups.of_region, arrays), kind="stable")
        out.reshape(-1, units)[order] = owners.reshape(-1, units)
    return out


def fill(loads: NDArray[np.int64], counts: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
    """How many of a group's equal units each member gets, so that the highest load is lowest.

    Args:
        loads: a row for each group.
        counts: the units of each group.
    """
    quotas = np.zeros(loads.shape, np.int64)
    if (counts == 1).all():
        np.put_along_axis(quotas, loads.argmin(axis=1)[:, None], 1, axis=1)
        return quotas
    level = np.sort(loads, axis=1)
    filled = np.cumsum(np.where(level < _CLOSED, level, 0), axis=1)
    # The level that the units would reach in the first member, the first two, and so on.
    reach = (filled + (counts * nbytes)[:, None]) // np.arange(1, loads.shape[1] + 1)
    used = np.count_nonzero(level <= reach, axis=1)
    water = np.take_along_axis(reach, used[:, None] - 1, axis=1)
    quotas = np.maximum(0, (water - loads) // nbytes)
    rest = counts - quotas.sum(axis=1)
    if rest.any():
        after = np.where(loads < _CLOSED, loads + quotas * nbytes, _CLOSED)
        order = np.argsort(after, axis=1, kind="stable")
        more = np.arange(loads.shape[1]) < rest[:, None]
        np.put_along_axis(quotas, order, np.take_along_axis(quotas, order, 1) + more, axis=1)
    return quotas
