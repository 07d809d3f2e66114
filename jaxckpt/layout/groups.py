"""Which processes hold the regions of an array, as numbers in columns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY = -1
"""Fills up the rows of groups that are smaller than the largest."""
_LAST = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class ProcessGroups:
    """The distinct sets of processes that hold regions.

    Attributes:
        members: a row for each group: its processes, ascending, then ``NOBODY``.
        of_region: the group's row, for each region.
    """

    members: NDArray[np.int32]
    of_region: NDArray[np.int64]

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many processes each group has."""
        return np.count_nonzero(self.members != NOBODY, axis=1)

    @functools.cached_property
    def regions(self) -> NDArray[np.int64]:
        """How many regions each group holds."""
        return np.bincount(self.of_region, minlength=len(self.members))

    @functools.cached_property
    def by_group(self) -> NDArray[np.int64]:
        """The regions' numbers in order of their groups."""
        return np.argsort(self.of_region, kind="stable")

    @functools.cached_property
    def rounds(self) -> list[NDArray[np.int64]]:
        """Groups of several processes; those of one round have no process in common."""
        shared = np.flatnonzero(self.sizes > 1)
        members = self.members[shared]
        present = members[members != NOBODY]
        if np.unique(present).size == present.size:
            return [shared] if shared.size else []
        next_round: dict[int, int] = {}
        rounds: list[list[int]] = []
        for group, row in zip(shared.tolist(), members.tolist(), strict=True):
            processes = [p for p in row if p != NOBODY]
            turn = max(next_round.get(p, 0) for p in processes)
            next_round.update(dict.fromkeys(processes, turn + 1))
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(group)
        return [np.array(groups) for groups in rounds]

    @functools.cached_property
    def common(self) -> ProcessGroups | None:
        """The processes that hold every region, as the only group; None if there are none."""
        if len(self.members) == 1:
            row = self.members
        else:
            present = self.members[self.members != NOBODY]
            processes, counts = np.unique(present, return_counts=True)
            row = processes[counts == len(self.members)][None]
        return ProcessGroups(row, np.zeros(1, np.int64)) if row.size else None


def process_groups(process: NDArray[np.int32]) -> ProcessGroups:
    """Finds the groups.

    Args:
        process: for each region the processes of its devices, ascending.
    """
    again = np.zeros(process.shape, bool)
    again[:, 1:] = process[:, 1:] == process[:, :-1]
    rows = np.sort(np.where(again, _LAST, process), axis=1)
    most = int(np.count_nonzero(~again, axis=1).max(initial=0))
    if most == 1:
        single, of_region = np.unique(rows[:, 0], return_inverse=True)
        return ProcessGroups(single[:, None].astype(np.int32), of_region)
    members, of_region = np.unique(rows[:, :most], axis=0, return_inverse=True)
    members = np.where(members == _LAST, NOBODY, members).astype(np.int32)
    return ProcessGroups(members, of_region.reshape(-1))
