"""Bars: what is drawn when somebody looks, driven by hand and without a clock."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from rich.live import Live

from jaxckpt.io.bars import Bars
from jaxckpt.io.progress import Tally

LOOKS = 6  # that a tally must have been there for


class Screen:
    """Bars on a console of text, whose thread is the test itself."""

    def __init__(self, *, terminal: bool = True) -> None:
        self.stream = io.StringIO()
        self.begun: list[Callable[[], bool]] = []
        self.bars = Bars(
            lambda: Console(file=self.stream, force_terminal=terminal, width=90, _environ={}),
            self.begun.append,
        )

    def tally(self, what: str, total: int | None = 4_000_000_000) -> Tally:
        made = Tally(what, total, self.bars)
        made.begin()
        return made

    def look(self, times: int = LOOKS) -> bool:
        return [self.bars.look() for _ in range(times)][-1]

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.stream.getvalue())


@pytest.fixture
def screen() -> Iterator[Screen]:
    yield Screen()
    assert sys.stdout.__class__.__name__ != "FileProxy"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_short_one_shows_nothing(terminal: bool) -> None:
    screen = Screen(terminal=terminal)
    tally = screen.tally("save of step 3")
    assert screen.look(LOOKS - 1)
    tally.add(4_000_000_000)
    tally.end(whole=True)
    assert not screen.look()
    assert screen.text() == ""


def test_a_long_one_shows_gigabytes_and_stays(screen: Screen) -> None:
    tally = screen.tally("save of step 3")
    tally.add(1_000_000_000)
    screen.look()
    assert "save of step 3" in screen.text()
    assert "1.00 of 4.00 GB" in screen.text()
    assert "\x1b[?25l" in screen.stream.getvalue()
    tally.add(3_000_000_000)
    tally.end(whole=True)
    last = screen.text().rsplit("save of step 3", 1)[-1]
    assert "4.00 of 4.00 GB" in last
    assert last.endswith("\n")
    assert re.search(r"\d GB/s", last)
    assert screen.stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_bytes_of_unknown_number(screen: Screen) -> None:
    tally = screen.tally("save of step 3", None)
    tally.add(2_000_000_000)
    screen.look()
    assert "2.00 GB" in screen.text()
    assert " of 4" not in screen.text()
    tally.end(whole=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_one_that_failed_leaves_nothing(terminal: bool) -> None:
    screen = Screen(terminal=terminal)
    tally = screen.tally("save of step 3")
    screen.look()
    before = len(screen.stream.getvalue())
    tally.end(whole=False)
    after = screen.stream.getvalue()[before:]
    assert "save of step 3" not in after
    assert not screen.look()
    if terminal:
        assert after.endswith("\x1b[?25h")
    else:
        assert screen.text() == ""


def test_a_file_gets_one_line_at_the_end() -> None:
    screen = Screen(terminal=False)
    tally = screen.tally("save of step 3")
    for _ in range(4):
        tally.add(1_000_000_000)
        screen.look()
    tally.end(whole=True)
    assert screen.text().count("save of step 3") == screen.text().count("\n") == 1
    assert "4.00 of 4.00 GB" in screen.text()


def test_two_share_one_display(screen: Screen) -> None:
    first, second = screen.tally("save of step 3"), screen.tally("save of step 4")
    assert len(screen.begun) == 1  # one thread looks at all
    screen.look()
    both = screen.text()
    assert "save of step 3" in both
    assert "save of step 4" in both
    first.end(whole=True)
    before = len(screen.text())
    screen.look()
    assert "save of step 3" not in screen.text()[before:]
    assert "save of step 4" in screen.text()[before:]
    second.end(whole=True)
    assert not screen.look()


def test_it_begins_anew_after_the_last_one(screen: Screen) -> None:
    for step in (1, 2):
        tally = screen.tally(f"save of step {step}")
        screen.look()
        tally.end(whole=True)
        assert not screen.look()
        assert len(screen.begun) == step
        assert f"save of step {step}" in screen.text()


def test_keeps_away_from_a_display_of_the_program(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    tally = screen.tally("save of step 3")
    own = Console(file=io.StringIO(), force_terminal=True, _environ={})
    with Live("loss 0.1", console=own, auto_refresh=False):
        screen.look()
        assert screen.text() == ""
    screen.look(1)
    assert "save of step 3" in screen.text()
    with Live("loss 0.1", console=own, auto_refresh=False):
        screen.look(1)
        assert screen.stream.getvalue().endswith("\x1b[?25h")
        before = len(screen.text())
        screen.look()
        assert len(screen.text()) == before
    tally.end(whole=True)


def test_one_that_is_not_shown_yet_outlives_the_last_bar(screen: Screen) -> None:
    first = screen.tally("save of step 3")
    screen.look(LOOKS - 1)
    second = screen.tally("save of step 4", 10_000_000_000)
    screen.look(2)
    second.add(5_000_000_000)
    first.end(whole=True)
    assert "save of step 4" not in screen.text()
    screen.look()
    assert "5.00 of 10.00 GB" in screen.text()
    second.end(whole=False)


def test_long_names_are_cut_to_a_line(screen: Screen) -> None:
    tally = screen.tally("save of step 3 to " + "/very/long/path" * 20)
    screen.look()
    assert max(map(len, screen.text().splitlines())) <= 90
    tally.end(whole=False)


def test_text_is_no_markup(screen: Screen) -> None:
    tally = screen.tally("save to [red]/run")
    screen.look()
    assert "[red]/run" in screen.text()
    tally.end(whole=False)


def test_a_stream_that_fails_ends_the_showing_and_nothing_else(screen: Screen) -> None:
    tally = screen.tally("save of step 3")
    screen.stream.close()
    assert not screen.look()
    tally.add(5)
    tally.end(whole=True)
    later = screen.tally("save of step 4")
    later.end(whole=True)
    assert len(screen.begun) == 1


def test_the_real_thread_ends_with_the_last_tally() -> None:
    begun: list[Callable[[], bool]] = []
    bars = Bars(repeat=begun.append)
    tally = Tally("restore", 1, bars)
    tally.begin()
    assert begun[0]()
    tally.end(whole=True)
    assert not begun[0]()
