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
        in_flight: how many snapshots of the state may be in host memory at once, within the budget:
            one that is written and others that wait. With 1 a save waits for the one before.
        views: on CPU devices, in a loop that does not donate its state, only look at the arrays in
            the call and copy behind it. Their memory must not change under them, as it may where
            an array was made of a numpy array without a copy.
        writer_threads: threads that write. One, in order, is the fastest on a local disk;
            parallel file systems gain from more.
        checksum: store and check a crc32c for each chunk. Off only to see what it costs.
        compression: ``None``, or ``"zstd"`` (level 1; slower, and floats hardly shrink).
        complete: how a restore in a job of several processes gets the bytes that several of them
            need. ``"allgather"``: each byte is read once in the job, striped over the processes
            that need it, and handed on over the devices. ``"broadcast"``: one of them reads, and
            hands on. ``"direct"``: each reads all that it needs. ``"auto"`` measures the first two
            ways on the first bytes and takes the faster one, the same on every process.
        gather_bytes: device memory that one process takes for handing bytes on.
        check_gathered: hold what was handed on against the stored checksums in every process, not
            only where it was read.
        barrier_secs: how long a process waits for the others before the first collective of a
            restore.
        direct_io: ``"on"`` goes past the page cache and fails where the file system can not,
            ``"off"`` never does, ``"auto"`` does where it can.
        progress: show a bar on the standard error stream for each save that is being written and
            each restore that takes longer than about a second: GB, GB/s and the time left. In a
            job process 0 shows its own share.
    """

    chunk_bytes: int = 64 * MIB
    data_file_bytes: int = 4 * GIB
    memory_budget_bytes: int = 1 * GIB
    in_flight: int = 2
    views: bool = False
    writer_threads: int = 1
    checksum: bool = True
    compression: Literal["zstd"] | None = None
    complete: Literal["auto", "direct", "allgather", "broadcast"] = "auto"
    gather_bytes: int = 128 * MIB
    check_gathered: bool = True
    barrier_secs: float = 60.0
    direct_io: Literal["on", "off", "auto"] = "auto"
    progress: bool = False

    def __post_init__(self) -> None:
        _check_int("chunk_bytes", self.chunk_bytes, 4 * KIB, 4 * GIB)
        _check_int("data_file_bytes", self.data_file_bytes, 1 * MIB, 1 << 40)
        _check_int("memory_budget_bytes", self.memory_budget_bytes, 16 * MIB, 1 << 44)
        _check_int("in_flight", self.in_flight, 1, 64)
        _check_int("writer_threads", self.writer_threads, 1, 64)
        _check_int("gather_bytes", self.gather_bytes, 1 * MIB, 1 << 40)
        for name in ("views", "checksum", "check_gathered", "progress"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionsError(name, getattr(self, name), "True or False")
        if self.complete not in ("auto", "direct", "allgather", "broadcast"):
            raise InvalidOptionsError(
                "complete", self.complete, "'auto', 'direct', 'allgather' or 'broadcast'"
            )
        if isinstance(self.barrier_secs, bool) or not 0 < self.barrier_secs <= 1e6:
            raise InvalidOptionsError("barrier_secs", self.barrier_secs, "seconds, more than 0")
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
