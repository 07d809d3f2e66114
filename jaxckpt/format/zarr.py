"""Zarr v3 metadata and chunk keys of one array.

Source: the Zarr v3 core specification and its `bytes`, `zstd` and `crc32c` codec pages.
"""

from __future__ import annotations

import json

from jaxckpt.format.dtypes import DTYPES, zarr_fill_value, zarr_name

CRC_BYTES = 4
ZSTD_LEVEL = 1


def array_metadata(
    shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    dtype: str,
    *,
    checksum: bool,
    compression: str | None,
) -> bytes:
    """The ``zarr.json`` of an array."""
    plain: dict[str, object] = {"name": "bytes"}
    if DTYPES[dtype].itemsize > 1:
        plain["configuration"] = {"endian": "little"}
    codecs: list[object] = [plain]
    if compression == "zstd":
        codecs.append({"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}})
    if checksum:
        codecs.append({"name": "crc32c"})
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": zarr_name(dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": zarr_fill_value(dtype),
            "codecs": codecs,
        },
        separators=(",", ":"),
    ).encode()


def metadata_key(name: str) -> bytes:
    """The database key of an array's metadata."""
    return _key(name, "zarr.json")


def chunk_key(name: str, position: tuple[int, ...]) -> bytes:
    """The database key of the chunk at a position of the chunk grid."""
    return _key(name, "/".join(("c", *map(str, position))))


def _key(name: str, rest: str) -> bytes:
    # A tree that is one bare array has the name "", and orbax puts no slash in front then.
    return (f"{name}/{rest}" if name else rest).encode()


def packed_bound(nbytes: int) -> int:
    """The most bytes that zstd makes of so many.

    Source: ``ZSTD_COMPRESSBOUND`` in zstd.h; its margin for short inputs is 64 bytes at most.
    """
    return nbytes + (nbytes >> 8) + 64
