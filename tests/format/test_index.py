"""OCDBT as we write and read it, with TensorStore as the oracle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxckpt._types import Span
from jaxckpt.format.btree import ValueRef, decode_node, encode_leaf
from jaxckpt.format.datafiles import DataFile, check_data_path
from jaxckpt.format.frame import BTREE_MAGIC, FormatError, decode_frame, encode_frame
from jaxckpt.format.index import Index, build_tree, read_tree
from jaxckpt.format.manifest import Root, decode_manifest, encode_manifest
from jaxckpt.format.varint import TruncatedError, decode_column, decode_number, encode_column

UUID = bytes(range(16))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200), st.binary(max_size=3))
def test_varints(values: list[int], behind: bytes) -> None:
    data = encode_column(values)
    found, position = decode_column(np.frombuffer(data + behind, np.uint8), 0, len(values))
    assert found.tolist() == values
    assert position == len(data)
    position = 0
    for value in values:
        found_one, position = decode_number(data + behind, position)
        assert found_one == value
    assert position == len(data)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"])
def test_bad_varints(data: bytes) -> None:
    with pytest.raises(TruncatedError):
        decode_column(np.frombuffer(data, np.uint8), 0, 1)
    with pytest.raises(TruncatedError):
        decode_number(data, 0)


def write_database(path: Path, entries: list[Any], nodes: str = "nodes") -> Root:
    blob, root = build_tree(entries, DataFile("", nodes), 0)
    (path / nodes).write_bytes(blob)
    (path / "manifest.ocdbt").write_bytes(encode_manifest(UUID, root, 1))
    return root


def read_database(path: Path) -> Index:
    def fetch(span: Span) -> bytes:
        data = (path / span.file).read_bytes()
        assert span.end <= len(data)
        return data[span.offset : span.end]

    return read_tree(decode_manifest((path / "manifest.ocdbt").read_bytes(), "manifest"), fetch)


keys = st.binary(min_size=0, max_size=40)
entries = st.dictionaries(
    keys,
    st.one_of(st.binary(max_size=50), st.tuples(st.integers(0, 999), st.integers(0, 99))),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60)
@given(entries)
def test_tensorstore_reads_what_we_write_and_we_read_it_too(
    tmp_path_factory: Any, found: dict[bytes, Any]
) -> None:
    path = tmp_path_factory.mktemp("db")
    data = random.Random(0).randbytes(2000)
    (path / "data").write_bytes(data)
    rows = [
        (k, v if isinstance(v, bytes) else ValueRef(DataFile("", "data"), *v))
        for k, v in sorted(found.items())
    ]
    write_database(path, rows)
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/"}).result()
    assert sorted(store.list().result()) == sorted(found)
    index = read_database(path)
    assert index.keys == sorted(found)
    for key, value in found.items():
        want = value if isinstance(value, bytes) else data[value[0] : sum(value)]
        assert store.read(key).result().value == want
        ours = index.find(key)
        if isinstance(ours, Span):
            ours = data[ours.offset : ours.end]
        assert ours == want
    assert index.find(b"\xff" * 50) is None


@pytest.mark.parametrize("count", [1, 1000, 70_000])
def test_large_trees(tmp_path: Path, count: int) -> None:
    rows = [
        (b"leaf.%07d/c/0" % i, b"v%d" % i if i % 2 else ValueRef(DataFile("", "d/x"), i, 1))
        for i in range(count)
    ]
    root = write_database(tmp_path, rows)
    assert root.height == (1 if count > 30_000 else 0)
    index = read_database(tmp_path)
    assert index.keys == [k for k, _ in rows]
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path}/"}).result()
    assert len(store.list().result()) == count
    if count > 1:
        assert store.read(b"leaf.%07d/c/0" % (count // 2 * 2 - 1)).result().value == b"v%d" % (
            count // 2 * 2 - 1
        )


def test_we_read_what_tensorstore_writes(tmp_path: Path) -> None:
    config = {"max_decoded_node_bytes": 4096, "max_inline_value_bytes": 64}
    spec = {"driver": "ocdbt", "base": f"file://{tmp_path}/", "config": config}
    store = ts.KvStore.open(spec).result()
    written = {b"prefix/%05d" % i: bytes([i % 256]) * (i % 200) for i in range(3000)}
    with ts.Transaction() as transaction:
        for key, value in written.items():
            store.with_transaction(transaction)[key] = value
    index = read_database(tmp_path)
    assert index.keys == sorted(written)
    for key, value in written.items():
        found = index.find(key)
        if isinstance(found, Span):
            found = (tmp_path / found.file).read_bytes()[found.offset : found.end]
        assert found == value


def test_golden_manifest() -> None:
    """Once and for all: the bytes of version 1."""
    root = Root(0, ValueRef(DataFile("ocdbt.process_0/", "d/index"), 0, 300), 4, 300, 70_000)
    golden = (
        "0cdb3a2a5c00000000000000 0000 000102030405060708090a0b0c0d0e0f 00 808040 80808004 04 00"
        "01 17 10 6f636462742e70726f636573735f302f642f696e646578"
        "01 01 00 00 00 ac02 04 ac02 f0a204 7b00000000000000 00 "
    )
    encoded = encode_manifest(UUID, root, 123)
    assert encoded[:-4].hex() == golden.replace(" ", "")
    assert decode_manifest(encoded, "m") == root


def test_keys_must_be_in_order_and_unique() -> None:
    for rows in ([(b"a", b""), (b"a", b"")], [(b"b", b""), (b"a", b"")]):
        with pytest.raises(FormatError, match="twice or out of order"):
            build_tree(rows, DataFile("", "x"), 0)


@settings(max_examples=200)
@given(st.data())
def test_any_body_is_decoded_or_refused(data: Any) -> None:
    """Random changes under a valid checksum: FormatError or a node, never anything else."""
    rows = [
        (b"key%d" % i, b"x" * i if i % 2 else ValueRef(DataFile("b/", "f"), i, i)) for i in range(9)
    ]
    body = bytearray(decode_frame(BTREE_MAGIC, encode_leaf(rows), "node"))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    framed = encode_frame(BTREE_MAGIC, bytes(body[:cut] if data.draw(st.booleans()) else body))
    try:
        decode_node(framed, "node", "", b"")
    except FormatError as error:
        assert "node" in str(error)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    for call in (lambda: decode_manifest(data, "m"), lambda: decode_node(data, "n", "", b"")):
        with pytest.raises(FormatError):
            call()


def test_a_tree_that_refers_to_itself_ends() -> None:
    from jaxckpt.format.btree import NodeRef, encode_interior

    child = NodeRef(b"a", ValueRef(DataFile("", "f"), 0, 100), 1, 1, 1)
    node = encode_interior(5, [child])
    root = Root(5, ValueRef(DataFile("", "f"), 0, len(node)), 1, 1, 1)
    with pytest.raises(FormatError, match="height"):
        read_tree(root, lambda _: node)


@pytest.mark.parametrize(
    "path", ["", "/x", "../x", "a/../b", "a//b", "a/./b", "a\\b", "a\0b", "a/b/c/d/e", "x" * 2000]
)
def test_paths_that_leave_are_refused(path: str) -> None:
    with pytest.raises(FormatError, match="is refused"):
        check_data_path(path, "node")
    rows = [(b"k", ValueRef(DataFile("", path), 0, 1))]
    with pytest.raises(FormatError):
        decode_node(encode_leaf(rows), "node", "", b"")
