"""How the processes of a job share the reads of a restore: the way is chosen here, for all alike.

``direct``: every process reads what it needs. ``allgather``: each stored byte that several need is
read once and handed on. ``broadcast``: one of them reads it and hands it on. ``auto`` tries the
first two on the first bytes of each group and takes the way that the slowest process was faster
with; where nothing tells, ``allgather``, which asks least of the storage.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Literal

import crc32c
import numpy as np
from numpy.typing import NDArray

from jaxckpt._options import Options
from jaxckpt._types import Span
from jaxckpt.completing import Completion
from jaxckpt.io.chunk_reader import ChunkReader
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Job
from jaxckpt.io.extents import round_up
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.store import BLOCK_BYTES
from jaxckpt.io.stripe_reader import StripeReader
from jaxckpt.io.world import World
from jaxckpt.layout.gather_plan import (
    Group,
    Piece,
    Trial,
    plan_gather,
    plan_stripes,
    plan_trial,
)
from jaxckpt.layout.restore_plan import ChunkRead, span_of

_MARGIN = 1.05
"""Reading everything everywhere must be faster by this much: it takes the storage from others."""


class Sharing:
    """The reads of one restore, or of a part of it.

    Every process makes one and calls `run`, in the same order.

    Args:
        reads: what this process needs.
        groups: for each read the processes that need it.
    """

    def __init__(
        self,
        world: World,
        options: Options,
        operation: Operation,
        job: Job,
        reader: ChunkReader,
        sink: ChunkSink,
        reads: Sequence[ChunkRead],
        groups: Sequence[Group],
    ) -> None:
        self._world, self._options, self._operation = world, options, operation
        self._job, self._reader = job, reader
        both = list(zip(reads, groups, strict=True))
        self._alone = [read for read, group in both if not _is_shared(read, group)]
        # In the order of the files, so that a member reads runs of them.
        shared = sorted((pair for pair in both if _is_shared(*pair)), key=lambda b: _place(b[0]))
        self._reads = [read for read, _ in shared]
        self._groups = [group for _, group in shared]
        self._lengths = [span_of(read).length for read in self._reads]
        budget = options.gather_bytes
        if options.complete == "broadcast":
            budget //= 2  # each process gives the stripes of all
        self._stripes = plan_stripes(self._lengths, self._groups, budget)
        self._completion = Completion(
            operation.what,
            world.coordinator.process_index,
            job,
            StripeReader(reader, sink, self._reads),
            sink,
            self._reads,
            collective="broadcast" if options.complete == "broadcast" else "allgather",
            check=options.check_gathered,
        )

    def run(self) -> list[ChunkRead]:
        """Blocks until what is handed on is in its place; returns what this process has to read.

        Raises:
            PeerMissingError: a process did not come to the first collective in time.
            PeerFailedError: another process failed.
        """
        if self._operation.alone or self._options.complete == "direct":
            return [*self._alone, *self._reads]
        self._completion.compile(self._stripes)
        sizes = json.dumps(self._trial_sizes()).encode()
        trials = self._operation.meet(
            "ready to hand on", sizes, _pick, timeout_secs=self._options.barrier_secs
        )
        self._operation.note("handing on bytes")
        rest, way = self._try([tuple(group) for group in json.loads(trials)])
        if way == "direct":
            return [*self._alone, *(self._reads[v] for v in rest)]
        self._hand_on(rest)
        return self._alone

    def _hand_on(self, values: Sequence[int]) -> None:
        buckets = plan_gather(values, self._lengths, self._groups, self._stripes)
        if not self._completion.run(buckets):
            self._job.check()
            self._operation.meet("handed on", timeout_secs=self._options.barrier_secs)
            raise RuntimeError("a process said that it failed, and not why")

    # -- the trial ---------------------------------------------------------------------------------

    def _stream(self, group: Group) -> list[int]:
        return [value for value, own in enumerate(self._groups) if own == group]

    def _trial(self, group: Group) -> Trial | None:
        return plan_trial(self._stream(group), self._lengths, len(group), self._stripes[group])

    def _trial_sizes(self) -> list[tuple[Group, int]]:
        """Groups of this process that are long enough for a trial, with their bytes."""
        if self._options.complete != "auto":
            return []
        return [
            (group, sum(self._lengths[v] for v in self._stream(group)))
            for group in sorted(self._stripes)
            if self._trial(group) is not None
        ]

    def _try(self, trials: Sequence[Group]) -> tuple[list[int], Literal["direct", "allgather"]]:
        """Runs the trial of this process's group, if it has one; what is left, and the way."""
        everything = range(len(self._reads))
        if not trials:
            return list(everything), "allgather"
        own = next((g for g in trials if self._world.coordinator.process_index in g), None)
        trial = self._trial(own) if own is not None else None
        rates: list[float] | None = None
        done: set[int] = set()
        if own is not None and trial is not None:
            self._completion.warm_up(own, self._stripes[own])
            handed = sum(self._lengths[v] for v in trial.handed)
            read = sum(piece.stop - piece.start for piece in trial.sample)
            rates = [
                self._timed(lambda: self._hand_on(trial.handed)) / handed,
                self._timed(lambda: self._read(trial.sample)) / read,
            ]
            done.update(trial.handed)
        way = self._operation.meet("rates", json.dumps(rates).encode(), _choose)
        rest = [v for v in everything if v not in done]
        return rest, "direct" if way == b"direct" else "allgather"

    def _timed(self, work: Callable[[], None]) -> int:
        """Nanoseconds that it took."""
        begun = self._world.monotonic_ns()
        work()
        return self._world.monotonic_ns() - begun

    def _read(self, sample: Sequence[Piece]) -> None:
        """As a restore reads that reads all by itself: into fresh memory, with checksums."""
        sizes = [round_up(piece.stop - piece.start) for piece in sample]
        memory = np.frombuffer(aligned_memory(sum(sizes), huge_pages=True), np.uint8)
        parts = np.split(memory, np.cumsum(sizes)[:-1])

        def read(piece: Piece, room: NDArray[np.uint8]) -> None:
            span = span_of(self._reads[piece.value])
            first = (span.offset + piece.start) // BLOCK_BYTES * BLOCK_BYTES
            self._reader.reader(span.file).read_into(first, [room.data])
            crc32c.crc32c(room.data)

        tasks = [functools.partial(read, *pair) for pair in zip(sample, parts, strict=True)]
        self._job.join([self._job.read(task) for task in tasks])


def pick_trials(told: Sequence[Sequence[tuple[Sequence[int], int]]]) -> list[Group]:
    """Disjoint groups, the largest first, the same on every process.

    Args:
        told: for each process its groups and their bytes.
    """
    sizes = {tuple(group): size for process in told for group, size in process}
    taken: set[int] = set()
    picked: list[Group] = []
    for group in sorted(sizes, key=lambda g: (-sizes[g] * len(g), g)):
        if taken.isdisjoint(group):
            picked.append(group)
            taken.update(group)
    return picked


def choose(rates: Sequence[Sequence[float] | None]) -> Literal["direct", "allgather"]:
    """The way in which the slowest process is faster.

    Args:
        rates: for each process in a trial nanoseconds per byte, handed on and read by itself.
    """
    known = [rate for rate in rates if rate is not None]
    handed, read = (max(rate[i] for rate in known) for i in range(2))
    return "direct" if read * _MARGIN < handed else "allgather"


def _pick(told: list[bytes]) -> bytes:
    return json.dumps(pick_trials([json.loads(word) for word in told])).encode()


def _choose(told: list[bytes]) -> bytes:
    return choose([json.loads(word) for word in told]).encode()


def _place(read: ChunkRead) -> tuple[str, int]:
    span = span_of(read)
    return span.file, span.offset


def _is_shared(read: ChunkRead, group: Group) -> bool:
    return len(group) > 1 and isinstance(read.source, Span)
