"""How the processes of a job share the reads of a restore: the way is chosen here, for all alike.

``direct``: every process reads what it needs. ``allgather``: each stored byte that several need is
read once and handed on. ``broadcast``: one of them reads it and hands it on. ``auto`` tries the
first two on the first bytes of each group and takes the way that the slowest process was faster
with; where nothing tells, ``allgather``, which asks least of the storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

from jaxckpt._options import Options
from jaxckpt._types import Span
from jaxckpt.completing import Completion
from jaxckpt.io.chunk_reader import ChunkReader
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Job
from jaxckpt.io.stripe_reader import StripeReader
from jaxckpt.io.world import World
from jaxckpt.layout.gather_plan import Group, plan_gather, plan_stripes, trial_parts
from jaxckpt.layout.restore_plan import ChunkRead

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
        sources = [read.source for read in self._reads]
        self._lengths = [source.length for source in sources if isinstance(source, Span)]
        self._stripes = plan_stripes(self._lengths, self._groups, options.gather_bytes)
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

    def _parts(self, group: Group) -> tuple[list[int], list[int]] | None:
        bucket = self._stripes[group] * len(group)
        return trial_parts(self._stream(group), self._lengths, bucket)

    def _trial_sizes(self) -> list[tuple[Group, int]]:
        """Groups of this process that are long enough for a trial, with their bytes."""
        if self._options.complete != "auto":
            return []
        return [
            (group, sum(self._lengths[v] for v in self._stream(group)))
            for group in sorted(self._stripes)
            if self._parts(group) is not None
        ]

    def _try(self, trials: Sequence[Group]) -> tuple[list[int], Literal["direct", "allgather"]]:
        """Runs the trial of this process's group, if it has one; what is left, and the way."""
        everything = range(len(self._reads))
        if not trials:
            return list(everything), "allgather"
        own = next((g for g in trials if self._world.coordinator.process_index in g), None)
        parts = self._parts(own) if own is not None else None
        rates: list[float] | None = None
        done: set[int] = set()
        if own is not None and parts is not None:
            self._completion.warm_up(own, self._stripes[own])
            rates = [self._timed(self._hand_on, parts[0]), self._timed(self._read, parts[1])]
            done.update(*parts)
        way = self._operation.meet("rates", json.dumps(rates).encode(), _choose)
        rest = [v for v in everything if v not in done]
        return rest, "direct" if way == b"direct" else "allgather"

    def _timed(self, work: Callable[[Sequence[int]], None], values: Sequence[int]) -> float:
        """Nanoseconds per byte."""
        begun = self._world.monotonic_ns()
        work(values)
        spent = self._world.monotonic_ns() - begun
        return spent / sum(self._lengths[v] for v in values)

    def _read(self, values: Sequence[int]) -> None:
        tasks = self._reader.tasks([self._reads[v] for v in values])
        self._job.join([self._job.read(task) for task, _ in tasks])


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
    assert isinstance(read.source, Span)
    return read.source.file, read.source.offset


def _is_shared(read: ChunkRead, group: Group) -> bool:
    return len(group) > 1 and isinstance(read.source, Span)
