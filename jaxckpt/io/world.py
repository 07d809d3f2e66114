"""The four arguments through which everything happens: Store, Coordinator, clock, randomness."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.local import LocalStore
from jaxckpt.io.store import Store


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
    """

    store: Store
    coordinator: Coordinator
    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    random_bytes: Callable[[int], bytes] = secrets.token_bytes


def local_world(coordinator: Coordinator | None = None, *, require_direct: bool = False) -> World:
    """The real one: this machine's files and clock."""
    return World(LocalStore(require_direct=require_direct), coordinator or Coordinator())
