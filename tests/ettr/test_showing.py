"""Tables, pictures and TensorBoard's events of a report."""

from __future__ import annotations

import builtins
import dataclasses
import io
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from month import month_records
from rich.console import Console
from test_account import KILLED_AND_BACK, at, report_of, start, steps

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.ettr.account import account
from jaxckpt.ettr.columns import axis_unit, shares
from jaxckpt.ettr.export import plan_scalars
from jaxckpt.ettr.figures import Segment
from jaxckpt.ettr.picture import draw
from jaxckpt.ettr.records import Journal
from jaxckpt.ettr.table import duration

REPORT = report_of(*KILLED_AND_BACK)


def words_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table_says_where_the_time_went() -> None:
    text = str(REPORT)
    lines = words_of(text)
    for line in (
        "training, steps that count 30.0 s 22.73 %",
        "lost work, steps made again 20.0 s 15.15 %",
        "of it waiting for room 250.0 ms 0.19 %",
        "down, between sessions 1 min 00 s 45.45 %",
        "wall time 2 min 12 s",
        "effective training time ratio (ETTR) 22.73 %",
        "stall of a save 2 500.0 ms 500.0 ms 2.67 kB/s",
        "write in the background 1 2.0 s 2.0 s 0.50 kB/s",
        "40.0s a failure 10 20 20.0s 1m00s 1m12s",
        "Failures: 1, one in 1 min 12 s of running.",
        "Autopilot, at 2 min 11 s: a save every 12.5 s. few failures",
    ):
        assert line in lines
    assert max(map(len, text.splitlines())) <= 80
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(REPORT)
    assert words_of(console.export_text())[0] == "Where the time went"


def test_what_the_journal_says_reaches_neither_terminal_nor_browser_unescaped() -> None:
    bad = "\x1b[2J\x07<script>alert(1)</script>[red]\u202e\nx"
    report = report_of(start(0.0), at(1.0, "choice", interval_secs=60.0, why=bad), at(2.0, "end"))
    text = str(report)
    assert r"\x1b[2J\x07<script>" in text.replace("\n", "")
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    html = report._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html.replace("\n", "")


def test_an_empty_report_shows_as_well() -> None:
    report = report_of()
    assert "wall time" in str(report)
    assert draw(report, "svg")


def test_many_restarts_are_cut_to_the_newest() -> None:
    report = account(Journal(tuple(month_records(days=6)), 0))
    assert len(report.restarts) > 12
    assert f"The newest 12 of {len(report.restarts)} restarts" in str(report)
    assert max(map(len, str(report).splitlines())) <= 80
    assert "…" not in str(report)


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0.0032, "3.2 ms"), (41, "41.0 s"), (59.96, "1 min 00 s"), (320, "5 min 20 s"),
     (7499, "2 h 05 min"), (86400 * 3 + 14400, "3 d 4 h"), (0, "0 s")],
)  # fmt: skip
def test_durations(secs: float, text: str) -> None:
    assert duration(secs) == text


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted), max_size=8),
    st.integers(1, 50),
)
def test_columns_hold_all_the_time(spans: list[list[float]], columns: int) -> None:
    """Segments that do not overlap: the columns add up to their time."""
    ends = sorted({edge for span in spans for edge in span})
    segments = [Segment("x", a, b) for a, b in zip(ends[::2], ends[1::2], strict=False)]
    found = shares(segments, 100.0, columns)
    assert sum(found) * 100 / columns == pytest.approx(
        sum(s.end - s.start for s in segments), abs=1e-6
    )
    assert all(0 <= share <= 1 for share in found)


def test_the_axis_has_a_unit_that_people_count_in() -> None:
    wanted = {100.0: "seconds", 1000.0: "minutes", 1e5: "hours", 1e6: "days"}
    assert {secs: axis_unit(secs)[0] for secs in wanted} == wanted


def test_pictures_are_what_their_suffix_says(tmp_path: Path) -> None:
    REPORT.save_picture(tmp_path / "run.png")
    data = (tmp_path / "run.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1320, 528)
    REPORT.save_picture(tmp_path / "run.svg")
    texts = [e.text for e in ET.parse(tmp_path / "run.svg").iter() if e.tag.endswith("}text")]
    assert "22.73 % of the time was training that counts (ETTR)" in texts
    assert "background write" in texts
    assert "seconds since the run's start (wall clock)" in texts
    assert draw(REPORT, "svg") == draw(REPORT, "svg")
    with pytest.raises(InvalidOptionsError, match=r"expected a name that ends in \.png or \.svg"):
        REPORT.save_picture(tmp_path / "run.pdf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.png", "run.svg"]


def test_a_picture_of_a_month_is_small(tmp_path: Path) -> None:
    report = account(Journal(tuple(month_records()), 0))
    assert len(report.saves) > 5000
    assert len(draw(report, "svg")) < 1 << 20


def test_scalars_are_those_of_the_report() -> None:
    found = plan_scalars(REPORT)
    named = [(s.tag, s.at, s.step, round(s.value, 6)) for s in found]
    assert named == [
        ("jaxckpt/ettr", 19.0, 10, round(10 / 19, 6)),
        ("jaxckpt/stall_secs", 19.0, 10, 0.5),
        ("jaxckpt/write_gb_per_sec", 22.0, 10, 0.0),
        ("jaxckpt/ettr", 29.5, 20, round(10 / 29.5, 6)),
        ("jaxckpt/stall_secs", 29.5, 20, 0.5),
        ("jaxckpt/lost_secs", 100.0, 10, 20.0),
        ("jaxckpt/ettr", 132.0, 30, round(30 / 132, 6)),
    ]


def test_tensorboard_reads_them_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    REPORT.to_tensorboard(tmp_path / "logs")
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert sorted(events.Tags()["scalars"]) == [
        "jaxckpt/ettr", "jaxckpt/lost_secs", "jaxckpt/stall_secs", "jaxckpt/write_gb_per_sec",
    ]  # fmt: skip
    last = events.Scalars("jaxckpt/ettr")[-1]
    assert (last.wall_time, last.step) == (1132.0, 30)
    assert last.value == pytest.approx(30 / 132)


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("matplotlib", "report", lambda r, p: r.save_picture(p / "run.png")),
        ("tensorboard", "tensorboard", lambda r, p: r.to_tensorboard(p / "logs")),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, extra: str, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(name)
        return real(name, *rest, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    wanted = rf"the package {package} to be installed: pip install 'jaxckpt\[{extra}\]'"
    with pytest.raises(InvalidOptionsError, match=wanted):
        call(REPORT, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        REPORT.steps = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_the_figures_of_one_session_have_no_restarts() -> None:
    report = report_of(start(0.0), steps(5.0, 0, 5, 5.0))
    assert "Restarts" not in str(report)
