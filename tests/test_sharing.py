"""The way of a restore is one for all processes, and follows the slowest of them."""

from __future__ import annotations

from jaxckpt.sharing import choose, pick_trials


def test_the_slowest_process_decides() -> None:
    assert choose([[1.0, 2.0], [1.2, 1.9]]) == "allgather"
    assert choose([[3.0, 1.0], None, [2.0, 2.5]]) == "direct"
    assert choose([[3.0, 1.0], [2.0, 3.5]]) == "allgather"


def test_near_a_tie_storage_is_spared() -> None:
    assert choose([[1.0, 0.97]]) == "allgather"
    assert choose([[1.0, 0.94]]) == "direct"


def test_trials_are_disjoint_and_the_same_whoever_looks() -> None:
    told = [
        [[[0, 1], 500], [[0, 1, 2, 3], 100]],
        [[[0, 1], 500], [[0, 1, 2, 3], 100], [[1, 2], 400]],
        [[[0, 1, 2, 3], 100], [[1, 2], 400], [[2, 3], 300]],
        [[[2, 3], 300]],
    ]
    assert pick_trials(told) == [(0, 1), (2, 3)]
    assert pick_trials(list(reversed(told))) == [(0, 1), (2, 3)]
    assert pick_trials([[], []]) == []
