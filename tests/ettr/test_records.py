"""Records of the journal: what is written is read back, what is damaged is passed over."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.ettr.records import KINDS, MAX_LINE_BYTES, Record, encode, encode_steps, parse_journal
from jaxckpt.format.names import MAX_STEP

SECS = st.floats(0, 1e9).map(lambda x: round(x, 6))
COUNTS = st.integers(0, 1 << 60)
STEPS = st.integers(0, MAX_STEP)
VALUES = {
    "wall": SECS, "secs": SECS, "stall": SECS, "waited": SECS, "write_secs": SECS,
    "interval_secs": SECS, "version": st.text(max_size=20), "why": st.text(max_size=20),
    "error": st.text(max_size=20), "format": COUNTS, "processes": COUNTS, "devices": COUNTS,
    "bytes": COUNTS, "step": STEPS, "newer": STEPS, "lazy": st.booleans(),
    "steps": st.lists(STEPS, max_size=5), "first": STEPS, "last": STEPS,
}  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(sorted(KINDS)))
    facts = {}
    for name in KINDS[kind]:
        if not name.endswith("?") or draw(st.booleans()):
            facts[name.removesuffix("?")] = draw(VALUES[name.removesuffix("?")])
    if kind == "steps":
        first = draw(st.integers(0, MAX_STEP - 1))
        facts |= {"first": first, "last": draw(st.integers(first + 1, MAX_STEP))}
    return Record(
        draw(st.text("0123456789abcdef", min_size=12, max_size=12)), draw(SECS), kind, facts
    )


@given(st.lists(records(), max_size=10))
def test_what_is_written_is_read_back(written: list[Record]) -> None:
    read = parse_journal(b"".join(map(encode, written)))
    assert read.records == tuple(written)
    assert read.skipped == 0


@given(st.lists(records(), min_size=1, max_size=6), st.data())
def test_a_torn_line_costs_only_itself(written: list[Record], data: st.DataObject) -> None:
    lines = [encode(r) for r in written]
    torn = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(1, len(lines[torn]) - 2))
    garbage = data.draw(st.sampled_from([b"", b"\0" * 30, b"\xff\xfe"]))
    lines[torn] = lines[torn][:cut] + garbage + b"\n"
    read = parse_journal(b"".join(lines))
    assert read.records == (*written[:torn], *written[torn + 1 :])
    assert read.skipped == 1


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    read = parse_journal(data)
    assert len(read.records) + read.skipped <= len(data.split(b"\n"))


def line(**changes: object) -> bytes:
    good = {"t": 1.0, "e": "save", "s": "ab", "step": 3, "stall": 0.5}
    return json.dumps(good | changes).encode()


@pytest.mark.parametrize(
    "bad",
    [
        line(t=-1), line(t="1"), line(t=True), line(t=1e300), line(s=7), line(e=None),
        line(step=-1), line(step=1.5), line(step=10**16), line(step=True), line(stall=None),
        line(stall=-0.1), line(why="x" * 201), line(lazy=1), line(bytes=1 << 63),
        line(why="y" * MAX_LINE_BYTES), b'{"t":1,"t":2,"e":"end","s":"a"}', b"[" * 4000, b"[]",
        line(stall=1).replace(b'"stall": 1', b'"stall": 1e999'),
        line(stall=1).replace(b'"stall": 1', b'"stall": NaN'),
        line(step=1).replace(b'"step": 1', b'"step": ' + b"9" * 5000),
        line(e="steps", first=5, last=5, secs=1),
        line(e="removed", steps=[1, "2"]), b'{"t":1,"e":"save","s":"ab","step":3}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted(bad: bytes) -> None:
    read = parse_journal(line() + b"\n" + bad + b"\n" + line(step=4))
    assert [r.facts["step"] for r in read.records] == [3, 4]
    assert read.skipped == 1


def test_what_a_newer_version_adds_is_passed_over() -> None:
    read = parse_journal(line(colour="red") + b"\n" + line(e="painted") + b"\n\n")
    assert [dict(r.facts) for r in read.records] == [{"step": 3, "stall": 0.5}]
    assert read.skipped == 0


def test_the_writer_holds_the_same_rules() -> None:
    with pytest.raises(ValueError, match="'painted': no such kind"):
        encode(Record("a", 0, "painted", {}))
    with pytest.raises(ValueError, match="'save': no stall"):
        encode(Record("a", 0, "save", {"step": 1}))
    with pytest.raises(ValueError, match=r"'save': no such fields: \['color'\]"):
        encode(Record("a", 0, "save", {"step": 1, "stall": 0.0, "color": 1}))
    long = encode(Record("a", 0, "failed", {"step": 1, "error": "x" * 5000}))
    many = encode(Record("a", 0, "removed", {"steps": [MAX_STEP] * 5000}))
    assert len(parse_journal(long + many).records) == 2


@given(st.text("0123456789abcdef", min_size=12, max_size=12), SECS, STEPS, STEPS, SECS)
def test_the_quick_line_is_the_same(
    session: str, t: float, first: int, last: int, secs: float
) -> None:
    if first < last:
        facts = {"first": first, "last": last, "secs": secs}
        assert encode_steps(session, t, first, last, secs) == encode(
            Record(session, t, "steps", facts)
        )
