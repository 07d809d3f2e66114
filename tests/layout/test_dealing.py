"""Dealing equal units is as level as giving each to the least loaded, one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.layout.dealing import Batch, deal, fill
from jaxckpt.layout.groups import NOBODY, process_groups


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=9),
    st.integers(0, 60),
    st.integers(1, 90),
)
def test_fill_is_as_level_as_one_by_one(loads: list[int], count: int, nbytes: int) -> None:
    quotas = fill(np.array([loads]), np.array([count]), nbytes)[0]
    assert quotas.sum() == count
    assert (quotas >= 0).all()
    one_by_one = list(loads)
    for _ in range(count):
        one_by_one[one_by_one.index(min(one_by_one))] += nbytes
    assert sorted(np.array(loads) + quotas * nbytes) == sorted(one_by_one)


@given(st.data())
def test_units_go_to_holders(data: Any) -> None:
    width = data.draw(st.integers(1, 4))
    rows = st.lists(st.integers(0, 6), min_size=width, max_size=width).map(sorted)
    batches = []
    for _ in range(data.draw(st.integers(1, 4))):
        process = np.array(data.draw(st.lists(rows, min_size=1, max_size=6)), np.int32)
        groups = process_groups(process)
        for number, group in enumerate(groups.of_region):
            members = groups.members[group]
            assert sorted(set(process[number])) == [p for p in members if p != NOBODY]
        for together in groups.rounds:
            present = [p for p in groups.members[together].ravel() if p != NOBODY]
            assert len(present) == len(set(present))
        arrays, units = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
        batch = Batch(groups, arrays, units, data.draw(st.integers(1, 50)))
        batches.append((process, batch))
    loads, owners = deal([batch for _, batch in batches])
    expected = np.zeros(len(loads) - 1, int)
    for (process, batch), own in zip(batches, owners, strict=True):
        assert own.shape == (batch.arrays, len(process), batch.units)
        for region, row in enumerate(process):
            assert np.isin(own[:, region], row).all()
        np.add.at(expected, own.ravel(), batch.nbytes)
    assert (loads[:-1] == expected).all()


def test_processes_that_hold_all() -> None:
    common = process_groups(np.array([[0, 1, 3], [1, 1, 3], [1, 2, 3]], np.int32)).common
    assert common is not None
    assert common.members.tolist() == [[1, 3]]
    assert process_groups(np.array([[0, 1], [2, 2]], np.int32)).common is None
