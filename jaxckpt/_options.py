"""Options, checked once when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxckpt.errors import InvalidOptionsError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """How checkpoints are written and read.

    Attributes:
        chunk_bytes: the largest chunk, where the divisors of a shard's shape allow it.
        data_file_bytes: a data file is closed once it holds this many bytes.
        memory_budget_bytes: the most host memory that saves may hold beyond the state itself.
        writer_threads: threads that write. One, in order, is the fastest on a local disk;
            parallel file systems gain from more.
        checksum: store and check a crc32c for each chunk. Off only to see what it costs.
        compression: ``None``, or ``"zstd"`` (level 1; slower, and floats hardly shrink).
        direct_io: ``"on"`` goes past the page cache and fails where the file system can not,
            ``"off"`` never does, ``"auto"`` does where it can.
    """

    chunk_bytes: int = 64 * MIB
    data_file_bytes: int = 4 * GIB
    memory_budget_bytes: int = 1 * GIB
    writer_threads: int = 1
    checksum: bool = True
    compression: Literal["zstd"] | None = None
    direct_io: Literal["on", "off", "auto"] = "auto"

    def __post_init__(self) -> None:
        _check_int("chunk_bytes", self.chunk_bytes, 4 * KIB, 4 * GIB)
        _check_int("data_file_bytes", self.data_file_bytes, 1 * MIB, 1 << 40)
        _check_int("memory_budget_bytes", self.memory_budget_bytes, 16 * MIB, 1 << 44)
        _check_int("writer_threads", self.writer_threads, 1, 64)
        if not isinstance(self.checksum, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError("checksum", self.checksum, "True or False")
        if self.compression not in (None, "zstd"):
            raise InvalidOptionsError("compression", self.compression, "None or 'zstd'")
        if self.direct_io not in ("on", "off", "auto"):
            raise InvalidOptionsError("direct_io", self.direct_io, "'on', 'off' or 'auto'")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidOptionsError(name, value, f"a whole number from {low} to {high}")


def checked_options(options: Options | None) -> Options:
    """The options given, or the default ones.

    Raises:
        InvalidOptionsError: something else was given.
    """
    if options is None:
        return Options()
    if not isinstance(options, Options):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOptionsError("options", options, "jaxckpt.Options(...)")
    return options
