"""The data file table of an OCDBT structure, and which file names are allowed in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxckpt.format.cursor import Cursor
from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_FILES_PER_TABLE, MAX_PATH_BYTES, MAX_PATH_LEVELS
from jaxckpt.format.varint import encode_column


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file: ``base`` also applies to what the file's own nodes refer to, ``name`` not."""

    base: str
    name: str

    @property
    def path(self) -> str:
        return self.base + self.name


def check_data_path(path: str, what: str) -> str:
    """Returns a path that stays inside the checkpoint, or refuses it by name."""
    parts = path.split("/")
    bad = (
        len(path.encode()) > MAX_PATH_BYTES
        or len(parts) > MAX_PATH_LEVELS
        or any(part in ("", ".", "..") for part in parts)
        or any(c in path for c in "\\\0")
    )
    if bad:
        raise FormatError(
            f"{what}: the data file path {path[:200]!r} is refused: it must be relative, of at "
            f"most {MAX_PATH_LEVELS} names and {MAX_PATH_BYTES} bytes, without '.', '..' or '\\'"
        )
    return path


def encode_table(files: list[DataFile]) -> bytes:
    """The table; prefixes are not shared, since a node refers to few files."""
    paths = [f.path.encode() for f in files]
    return (
        encode_column([len(files)])
        + encode_column([0] * max(0, len(files) - 1))
        + encode_column([len(p) for p in paths])
        + encode_column([len(f.base.encode()) for f in files])
        + b"".join(paths)
    )


def decode_table(cursor: Cursor, transitive: str) -> list[DataFile]:
    """Reads a table; ``transitive`` is the base that the parent's reference hands on.

    An empty path may stand in a table, for a version without a root; whoever uses an entry
    checks that it names a file.
    """
    count = cursor.number("num_files", MAX_FILES_PER_TABLE)
    prefixes = np.zeros(count, np.int64)
    prefixes[1:] = cursor.column("path_prefix_length", max(0, count - 1), 65535)
    suffixes = cursor.column("path_suffix_length", count, 65535)
    bases = cursor.column("base_path_length", count, 65535)
    files: list[DataFile] = []
    previous = b""
    for i in range(count):
        prefix = int(prefixes[i])
        if prefix > len(previous):
            raise FormatError(
                f"{cursor.what}: path_prefix_length[{i}] is {prefix}; the path before has "
                f"{len(previous)} bytes"
            )
        previous = previous[:prefix] + cursor.take(f"path_suffix[{i}]", int(suffixes[i]))
        base = int(bases[i])
        if base > len(previous):
            raise FormatError(
                f"{cursor.what}: base_path_length[{i}] is {base}; the path has {len(previous)}"
            )
        try:
            file = DataFile(transitive + previous[:base].decode(), previous[base:].decode())
        except UnicodeDecodeError as error:
            raise FormatError(f"{cursor.what}: path {i} is not UTF-8") from error
        if file.path:
            check_data_path(file.path, cursor.what)
        files.append(file)
    return files
