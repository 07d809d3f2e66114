"""The arguments through which all happens: Store, Coordinator, clock, randomness, display."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxckpt.io.bars import Bars
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.progress import Display, Tally
from jaxckpt.io.store import Store

_BARS = Bars()


@dataclass(frozen=True, slots=True)
class World:
    """Where a save or restore happens.

    Attributes:
        store: files.
        coordinator: the other processes.
        wall_ns: nanoseconds since 1970, for people and for orbax's metadata; nothing is ordered
            by it.
        monotonic_ns: nanoseconds of a clock that only goes forward, to compare speeds with.
        random_bytes: that many random bytes, for names that nobody else has.
        display: where the progress of saves and restores is seen, if it is asked for.
    """

    store: Store
    coordinator: Coordinator
    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    display: Display = _BARS

    def tally(self, what: str, total_bytes: int | None, *, shown: bool) -> Tally:
        """Counts the bytes of a save or restore; the primary alone shows them.

        Args:
            what: it is, for people.
            total_bytes: see `Tally`.
            shown: whether the user asked for it.
        """
        seen = shown and self.coordinator.is_primary
        return Tally(what, total_bytes, self.display if seen else None)


def local_world(coordinator: Coordinator | None = None, *, require_direct: bool = False) -> World:
    """The real one: this machine's files and clock."""
    return World(LocalStore(require_direct=require_direct), coordinator or Coordinator())
