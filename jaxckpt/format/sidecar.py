"""The sidecar: what Zarr and orbax's own files can not say, in one checksummed file.

Two lines. The first is a JSON object with the format's version and the length and crc32c of the
second, which is a JSON object with the exact tree, the leaves and the files of the checkpoint.
The version stands alone in front so that it can be refused by name whatever follows.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any, cast

import crc32c

from jaxckpt._types import ARRAY_KINDS, LeafSpec
from jaxckpt.errors import FormatVersionError
from jaxckpt.format import strictjson
from jaxckpt.format.datafiles import check_data_path
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_ARRAY_BYTES, MAX_NDIM, MAX_SIDECAR_BYTES
from jaxckpt.format.tree import TreeNode, from_json, leaf_paths, to_json
from jaxckpt.format.values import value_dtype

SIDECAR_NAME = "jaxckpt.json"
FORMAT_VERSION = 1
_KINDS = frozenset(
    {"jax", "numpy", "prng", "npscalar", "int", "float", "complex", "bool", "str", "none", "empty"}
)
_VALUE_PATTERNS = {
    "int": re.compile(r"-?[0-9]{1,4000}"),
    "float": re.compile(r"[0-9a-f]{16}"),
    "complex": re.compile(r"[0-9a-f]{32}"),
    "bool": re.compile(r"True|False"),
    "empty": re.compile(r"dict|list|tuple|node"),
}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes of a file, and where it is small the CRC-32 of all of it.

    Not CRC-32C: indexes and manifests end with their own, and the CRC-32C of such a file depends on
    its length alone.
    """

    size: int
    crc: int | None = None

    @staticmethod
    def of(data: bytes) -> FileRecord:
        """The record of a small file."""
        return FileRecord(len(data), zlib.crc32(data))


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The decoded sidecar.

    Attributes:
        tree: the exact tree.
        leaves: by the numbers that the tree uses.
        files: every other file of the item, by its path relative to the item.
        process_count: how many processes wrote; there is a database of each.
        checksum: whether each chunk ends with its crc32c.
        compression: the codec of the chunks, or None.
    """

    tree: TreeNode
    leaves: tuple[LeafSpec, ...]
    files: dict[str, FileRecord]
    process_count: int
    checksum: bool
    compression: str | None


def encode_sidecar(sidecar: Sidecar) -> bytes:
    """Both lines."""
    shardings: dict[str, int] = {}
    body = json.dumps(
        {
            "tree": to_json(sidecar.tree),
            "leaves": [_leaf_to_json(leaf, shardings) for leaf in sidecar.leaves],
            "shardings": list(shardings),
            "files": {k: [r.size, r.crc] for k, r in sorted(sidecar.files.items())},
            "process_count": sidecar.process_count,
            "checksum": sidecar.checksum,
            "compression": sidecar.compression,
        },
        separators=(",", ":"),
    ).encode()
    head = {"jaxckpt": FORMAT_VERSION, "bytes": len(body), "crc32c": crc32c.crc32c(body)}
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def decode_sidecar(data: bytes, what: str) -> Sidecar:
    """Checks and reads a sidecar.

    Raises:
        FormatVersionError: it has a newer format.
        FormatError: it breaks a rule of the format.
    """
    line, _, rest = data.partition(b"\n")
    head = strictjson.parse(line, f"{what} (first line)", 4096)
    if not isinstance(head, dict) or "jaxckpt" not in head:
        raise FormatError(f"{what} does not begin with a jaxckpt header")
    header = cast("dict[str, Any]", head)
    version = header["jaxckpt"]
    if not isinstance(version, int) or version < 1:
        raise FormatError(f"{what} has format version {version!r:.80}")
    if version > FORMAT_VERSION:
        raise FormatVersionError(what, version, FORMAT_VERSION)
    body = rest[:-1]
    if rest[-1:] != b"\n" or header.get("bytes") != len(body):
        raise FormatError(
            f"{what} should have {header.get('bytes')!r:.40} bytes behind its first line and a "
            f"line end; it has {len(rest)}"
        )
    if header.get("crc32c") != crc32c.crc32c(body):
        raise FormatError(f"{what} does not have the crc32c {header.get('crc32c')!r:.40}")
    return _body_from_json(strictjson.parse(body, what, MAX_SIDECAR_BYTES), what)


def _body_from_json(doc: Any, what: str) -> Sidecar:
    try:
        tree = from_json(doc["tree"], what)
        numbered = leaf_paths(tree)
        paths = dict(numbered)
        if sorted(n for n, _ in numbered) != list(range(len(doc["leaves"]))):
            raise FormatError(f"{what}: the tree does not name each leaf once")
        shardings = doc["shardings"]
        leaves = tuple(
            _leaf_from_json(entry, paths[i], shardings, what)
            for i, entry in enumerate(doc["leaves"])
        )
        files = {
            check_data_path(name, what): FileRecord(
                _whole(size), None if crc is None else _whole(crc)
            )
            for name, (size, crc) in doc["files"].items()
        }
        compression = doc["compression"]
        if compression not in (None, "zstd") or not isinstance(doc["checksum"], bool):
            raise FormatError(f"{what}: compression is {compression!r:.40}; known are null, zstd")
        return Sidecar(
            tree, leaves, files, _whole(doc["process_count"]), doc["checksum"], compression
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{what} lacks a field or has one of a wrong type: {error!r}") from error


def _leaf_to_json(leaf: LeafSpec, shardings: dict[str, int]) -> list[object]:
    if leaf.kind not in ARRAY_KINDS:
        return [leaf.kind, leaf.value]
    crcs = base64.b64encode(leaf.crcs).decode()
    entry: list[object] = [leaf.kind, leaf.dtype, leaf.stored_shape, leaf.chunk_shape, crcs]
    if leaf.impl or leaf.sharding:
        row = -1 if leaf.sharding is None else shardings.setdefault(leaf.sharding, len(shardings))
        entry += [len(leaf.shape), leaf.impl, row]
    return entry


def _leaf_from_json(
    entry: list[Any], path: tuple[Any, ...], shardings: list[Any], what: str
) -> LeafSpec:
    name = ".".join(text for _, text in path)
    kind = entry[0]
    if kind not in _KINDS:
        raise FormatError(f"{what}: leaf '{name}' has kind {kind!r:.40}")
    if kind not in ARRAY_KINDS:
        value = entry[1]
        pattern = _VALUE_PATTERNS.get(kind)
        if not isinstance(value, str) or (pattern and not pattern.fullmatch(value)):
            raise FormatError(f"{what}: leaf '{name}' has the {kind} value {value!r:.80}")
        return LeafSpec(name, path, kind, dtype=value_dtype(kind, value), value=value)
    dtype, stored, chunks = entry[1], tuple(map(_whole, entry[2])), tuple(map(_whole, entry[3]))
    crcs = base64.b64decode(entry[4], validate=True)
    ndim, impl, row = entry[5:] if len(entry) > 5 else (len(stored), "", -1)
    sharding = None if row == -1 else shardings[_whole(row)]
    if dtype not in DTYPES:
        raise FormatError(f"{what}: leaf '{name}' has dtype {dtype!r:.40}")
    if (
        len(stored) > MAX_NDIM
        or len(chunks) != len(stored)
        or any(not 1 <= c <= max(1, s) for c, s in zip(chunks, stored, strict=True))
        or len(crcs) not in (0, 4 * chunk_count(stored, chunks))
        or not 0 <= _whole(ndim) <= len(stored)
        or not isinstance(impl, str)
        or not (sharding is None or isinstance(sharding, str))
        or (kind == "prng") != bool(impl)
        or (kind == "npscalar" and stored != ())
    ):
        raise FormatError(f"{what}: leaf '{name}' has shape {stored}, chunks {chunks}, ndim {ndim}")
    if math.prod(stored) * DTYPES[dtype].itemsize > MAX_ARRAY_BYTES:
        raise FormatError(f"{what}: leaf '{name}' claims the shape {stored}")
    return LeafSpec(
        name, path, kind, stored[:ndim], dtype, stored, chunks, impl, "", sharding, crcs
    )


def chunk_count(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    """How many chunks the grid of an array has."""
    return math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise FormatError(f"{value!r:.80} is not a whole number of 63 bits")
    return value
