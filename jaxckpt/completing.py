"""Buckets on their way: read in stripes, handed on by a collective, taken apart.

While one bucket is handed on, the next is being read and the last one taken apart.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import jax
import numpy as np
from numpy.typing import NDArray

from jaxckpt.device.gather import Collective, StripeGather, stripe_gather
from jaxckpt.errors import CollectiveFailedError
from jaxckpt.io.chunk_sink import ChunkSink, PartialValue
from jaxckpt.io.engine import Job
from jaxckpt.io.local import aligned_memory
from jaxckpt.io.stripe_reader import StripeReader
from jaxckpt.io.waiting import wait_for_all
from jaxckpt.layout.gather_plan import Bucket, Group
from jaxckpt.layout.restore_plan import ChunkRead

_AHEAD = 2
_READ, _FAILED = 1, 2
_COLLECTIVE_ERRORS = (jax.errors.JaxRuntimeError, ValueError)  # the second where a call waits


class Completion:
    """The buckets of this process, run one after another.

    Args:
        what: for messages.
        process: this one.
        job: its read and copy threads are used.
        reads: the stored values by the numbers that the buckets use.
        check: hold values that were handed on against their checksums, too.
    """

    def __init__(
        self,
        what: str,
        process: int,
        job: Job,
        reader: StripeReader,
        sink: ChunkSink,
        reads: Sequence[ChunkRead],
        *,
        collective: Collective,
        check: bool,
    ) -> None:
        self._what, self._process, self._job = what, process, job
        self._reader, self._sink, self._reads = reader, sink, reads
        self._check = check
        self._collective: Collective = collective
        self._gathers: dict[tuple[Group, int], StripeGather] = {}
        self._spare: dict[tuple[int, int], list[NDArray[np.uint8]]] = {}
        self._partial: dict[int, PartialValue] = {}
        self._broken = False

    def compile(self, stripes: Mapping[Group, int]) -> None:
        """Compiles the collective of each group; talks to no other process."""
        for key in stripes.items():
            self._gathers[key] = stripe_gather(*key, self._collective)
            # Taken now: who has no memory left later could not take part in a collective.
            self._spare_of(*key).extend(self._memory(*key) for _ in range(_AHEAD + 1))

    def warm_up(self, group: Group, stripe_bytes: int) -> None:
        """Hands nothing on, so that the connections are there; every member must call it."""
        memory = np.zeros(stripe_bytes, np.uint8)
        try:
            self._gathers[group, stripe_bytes](memory)
        except _COLLECTIVE_ERRORS as error:
            raise CollectiveFailedError(self._what, error) from error

    def run(self, buckets: Sequence[Bucket]) -> bool:
        """Blocks until all buckets are in their places; every member must run the same ones.

        Returns:
            Whether all went well everywhere. If not, the error is this process's own, which the
            job holds, or another process's, which the operation tells.
        """
        dead: set[Group] = set()
        ahead: deque[tuple[Bucket, NDArray[np.uint8], list[Future[None]]]] = deque()
        waiting = deque(buckets)
        behind: deque[Future[None]] = deque()
        try:
            while waiting or ahead:
                while waiting and len(ahead) <= _AHEAD:
                    bucket = waiting.popleft()
                    if bucket.group not in dead:
                        ahead.append(self._begin(bucket))
                if not ahead:
                    break
                bucket, memory, tasks = ahead.popleft()
                wait_for_all(tasks, self._job.fail)
                if bucket.group in dead:
                    self._spare_of(bucket.group, bucket.stripe_bytes).append(memory)
                    continue
                stripes = self._hand_on(bucket, memory)
                if not self._all_read(stripes):
                    # Every member sees this in the same bucket and leaves the group's others out.
                    dead.add(bucket.group)
                    self._broken = True
                    continue
                while len(behind) >= _AHEAD:
                    wait_for_all([behind.popleft()], self._job.fail)
                behind.append(self._job.place(functools.partial(self._take_apart, bucket, stripes)))
        finally:
            wait_for_all([f for _, _, tasks in ahead for f in tasks], self._job.fail)
            wait_for_all(behind, self._job.fail)
        return not (self._broken or self._job.stopped())

    def _begin(self, bucket: Bucket) -> tuple[Bucket, NDArray[np.uint8], list[Future[None]]]:
        """Starts the reads of this process's part of a bucket."""
        own = bucket.group.index(self._process)
        memory = self._spare_of(bucket.group, bucket.stripe_bytes).pop()
        if self._collective == "allgather":
            pieces = [p for p in bucket.pieces if p.member == own]
            tasks = self._reader.tasks(pieces, lambda _: memory[0])
        elif own == 0:
            tasks = self._reader.tasks(bucket.pieces, lambda member: memory[member])
        else:
            memory[:] = 0  # what is no word of the reader's must add nothing
            tasks = []
        return bucket, memory, [self._job.read(task) for task in tasks]

    def _rows(self, group: Group) -> int:
        return len(group) if self._collective == "broadcast" else 1

    def _spare_of(self, group: Group, stripe_bytes: int) -> list[NDArray[np.uint8]]:
        return self._spare.setdefault((self._rows(group), stripe_bytes), [])

    def _memory(self, group: Group, stripe_bytes: int) -> NDArray[np.uint8]:
        flat = np.frombuffer(aligned_memory(self._rows(group) * stripe_bytes), np.uint8)
        return flat.reshape(self._rows(group), stripe_bytes)

    def _hand_on(self, bucket: Bucket, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        failed = self._broken or self._job.stopped()
        own = bucket.group.index(self._process)
        if self._collective == "allgather" or own == 0 or failed:
            memory[:, :4] = np.frombuffer(
                np.uint32(_FAILED if failed else _READ).tobytes(), np.uint8
            )
        try:
            stripes = self._gathers[bucket.group, bucket.stripe_bytes](memory.reshape(-1))
        except _COLLECTIVE_ERRORS as error:
            raise CollectiveFailedError(self._what, error) from error
        self._spare_of(bucket.group, bucket.stripe_bytes).append(memory)
        return stripes

    def _all_read(self, stripes: NDArray[np.uint8]) -> bool:
        words = np.ascontiguousarray(stripes[:, :4]).view(np.uint32)
        return bool((words == _READ).all())

    def _take_apart(self, bucket: Bucket, stripes: NDArray[np.uint8]) -> None:
        """Puts the pieces of a bucket to their places; runs for one bucket after another."""
        own = bucket.group.index(self._process)
        for piece in bucket.pieces:
            read = self._reads[piece.value]
            size = piece.stop - piece.start
            data = stripes[piece.member, piece.offset : piece.offset + size]
            length = read.source.length if not isinstance(read.source, bytes) else 0
            if size == length and self._sink.run_memory(read) is None:
                reader = 0 if self._collective == "broadcast" else piece.member
                self._sink.put(read, data, check=self._check or reader == own)
                continue
            partial = self._partial.get(piece.value)
            if partial is None:
                partial = self._partial[piece.value] = self._sink.begin(read, length)
            if partial.add(data):
                del self._partial[piece.value]
