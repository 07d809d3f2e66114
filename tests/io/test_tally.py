"""Tallies: counting from many threads, and what a display is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxckpt.io.progress import Tally


class Told:
    """A display that remembers."""

    def __init__(self) -> None:
        self.begun: list[Tally] = []
        self.ended: list[tuple[Tally, bool]] = []

    def begin(self, tally: Tally) -> None:
        self.begun.append(tally)

    def end(self, tally: Tally, *, whole: bool) -> None:
        self.ended.append((tally, whole))


def test_counts_from_many_threads() -> None:
    tally = Tally("save", 80_000, Told())
    with ThreadPoolExecutor(8) as threads:
        for _ in range(80):
            threads.submit(lambda: [tally.add(1) for _ in range(1000)])
    assert tally.done_bytes == 80_000


def test_begins_and_ends_once() -> None:
    told = Told()
    tally = Tally("save", 10, told)
    tally.end(whole=False)
    assert told.ended == []  # it had not begun
    with tally:
        tally.begin()
    tally.end(whole=False)
    assert told.begun == [tally]
    assert told.ended == [(tally, True)]


def test_an_error_is_told_and_raised() -> None:
    told = Told()
    with pytest.raises(KeyboardInterrupt), Tally("save", 10, told):
        raise KeyboardInterrupt
    assert [whole for _, whole in told.ended] == [False]


def test_nobody_looks_nothing_is_counted() -> None:
    with Tally("save", 10, None) as tally:
        tally.add(10)
    assert tally.done_bytes == 0
