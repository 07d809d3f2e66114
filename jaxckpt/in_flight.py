"""Snapshots in host memory: which may come, whose turn it is to be written, which are dropped.

A snapshot is a state that is copied out, or being copied, and not yet written. One at a time is
written, the newest first. An older one that waits is dropped once a newer one is durable, or when
a newer one needs its room, unless its step must be kept. So training waits only where the room is
full of snapshots that must be kept or are being written.

In a job the primary alone drops and chooses; `step_save.py` tells the others. Every process has the
same snapshots, since all make the same calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from jaxckpt.io.pool import HostPool

_LOOK_SECS = 0.5


class Snapshot:
    """A state in host memory.

    Attributes:
        number: of the call; a higher one is newer, whatever its step.
        step: of the run.
        whole: it fits into the pool beside the others; else it is written while it is copied.
        newer: the step that it was dropped for, if it was.
        passed_over: a newer one was written first, and this one must be kept.
        urgent: it goes before all others.
    """

    def __init__(self, number: int, step: int, blocks: int, must_keep: Callable[[], bool]) -> None:
        self.number, self.step = number, step
        self.blocks, self.must_keep = blocks, must_keep
        self.whole = True
        self.newer: int | None = None
        self.passed_over = self.urgent = False
        self.state: Literal["copying", "ready", "writing", "over"] = "copying"
        self.in_memory = True


class InFlight:
    """All snapshots of a `Checkpointer`.

    Args:
        limit: how many may be in memory; with 1 nothing is ever dropped.
        pool: where their memory comes from.
    """

    def __init__(self, limit: int, pool: HostPool) -> None:
        self.limit, self._pool = limit, pool
        self._snapshots: list[Snapshot] = []
        self._turn: Snapshot | None = None
        self._count = 0
        self._changed = threading.Condition()

    def admit(
        self,
        step: int,
        blocks: int,
        must_keep: Callable[[], bool],
        look: Callable[[], None],
        *,
        decides: bool,
        urgent: bool = False,
    ) -> Snapshot:
        """Blocks until there is room for one more.

        Args:
            blocks: of the pool that it needs.
            must_keep: whether its step is to be kept even when newer ones are durable; asked when
                that matters.
            look: called now and then; what it raises is raised.
            decides: whether this process drops others to make room.
            urgent: it goes before all others that wait.
        """
        with self._changed:
            while not self._has_room(blocks):
                if decides:
                    self._make_room(step)
                self._changed.wait(_LOOK_SECS)
                look()
            self._count += 1
            snapshot = Snapshot(self._count, step, blocks, must_keep)
            snapshot.urgent = urgent
            snapshot.whole = self._waiting_blocks() + blocks <= self._pool.blocks
            self._snapshots.append(snapshot)
            return snapshot

    def wait_for(self, step: int, look: Callable[[], None]) -> None:
        """Blocks while a snapshot of this step is in flight.

        Args:
            look: as of `admit`.
        """
        with self._changed:
            while self.has(step):
                self._changed.wait(_LOOK_SECS)
                look()

    @property
    def count(self) -> int:
        """How many snapshots are in flight."""
        with self._changed:
            return len(self._snapshots)

    def has(self, step: int) -> bool:
        """Whether a snapshot of this step is in flight."""
        with self._changed:
            return any(s.step == step for s in self._snapshots)

    def ready(self, snapshot: Snapshot) -> None:
        """It can be written."""
        with self._changed:
            snapshot.state = "ready"
            self._changed.notify_all()

    def wait_for_turn(self, snapshot: Snapshot, look: Callable[[], None]) -> bool:
        """Blocks until it is to be written (True) or was dropped; for the process that decides.

        Args:
            look: called now and then; what it raises is raised.
        """
        with self._changed:
            while True:
                if snapshot.newer is not None:
                    return False
                if self._turn is None and snapshot is self._next():
                    self._begin(snapshot)
                    return True
                self._changed.wait(_LOOK_SECS)
                look()

    def take_turn(self, snapshot: Snapshot) -> None:
        """The primary said that it is to be written."""
        with self._changed:
            self._begin(snapshot)

    def release(self, snapshot: Snapshot) -> None:
        """Its memory is back in the pool."""
        with self._changed:
            snapshot.in_memory = False
            self._changed.notify_all()

    def made_durable(self, snapshot: Snapshot) -> None:
        """Drops the older ones that wait and need not be kept; for the process that decides."""
        with self._changed:
            for other in self._snapshots:
                if other.number > snapshot.number or other.state != "ready":
                    continue
                if self._may_go(other):
                    other.newer = snapshot.step
                else:
                    other.passed_over = True
            self._changed.notify_all()

    def end(self, snapshot: Snapshot) -> None:
        """It is over, however it ended; the next one may have its turn."""
        with self._changed:
            snapshot.state, snapshot.in_memory = "over", False
            if snapshot in self._snapshots:
                self._snapshots.remove(snapshot)
            if self._turn is snapshot:
                self._turn = None
            self._changed.notify_all()

    # -- with the lock held ------------------------------------------------------------------------

    def _has_room(self, blocks: int) -> bool:
        held = sum(s.in_memory for s in self._snapshots)
        if held == 0:
            return True  # also what is larger than the pool: it is written while it is copied
        return held < self.limit and self._waiting_blocks() + blocks <= self._pool.blocks

    def _waiting_blocks(self) -> int:
        """Blocks that come back only when a snapshot has had its turn."""
        return sum(s.blocks for s in self._snapshots if s.in_memory and s.state != "writing")

    def _make_room(self, newer: int) -> None:
        going = any(s.newer is not None and s.in_memory for s in self._snapshots)
        if self.limit == 1 or going:
            return
        for snapshot in self._snapshots:
            if snapshot.in_memory and self._may_go(snapshot):
                snapshot.newer = newer
                self._changed.notify_all()
                return

    def _may_go(self, snapshot: Snapshot) -> bool:
        return snapshot.state == "ready" and snapshot.newer is None and not snapshot.must_keep()

    def _next(self) -> Snapshot | None:
        """The newest that waits; but one that was passed over once is not passed over again, or it
        would never be written while newer ones keep coming.
        """
        waiting = [s for s in self._snapshots if s.state == "ready" and s.newer is None]
        old = [s for s in waiting if s.passed_over]
        if old and not any(s.urgent for s in waiting):
            return min(old, key=lambda s: s.number)
        return max(waiting, key=lambda s: (s.urgent, s.number), default=None)

    def _begin(self, snapshot: Snapshot) -> None:
        snapshot.state = "writing"
        self._turn = snapshot
        self._changed.notify_all()
