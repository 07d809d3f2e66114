"""A Store that holds writes until it is told to go on, and says what was made durable when."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from jaxckpt.io.store import Store
from jaxckpt.testing.faulty_store import FaultyStore

_TEMPORARY = re.compile(r"\.jaxckpt-tmp-(\d+)-")
PATIENCE_SECS = 15.0  # an event that does not come by then never will


class HeldStore(FaultyStore):
    """Holds every write into the hidden directory of a step, once `hold` was called.

    Args:
        inner: does the work.
        faults: of `FaultyStore`.
    """

    def __init__(self, inner: Store, **faults: Any) -> None:
        super().__init__(inner, **faults)
        self._changed = threading.Condition()
        self._closed = False
        self._passed: set[int] = set()
        self._waiting: set[int] = set()
        self.named: list[int] = []
        """Steps in the order in which they got their names."""

    def hold(self) -> None:
        """From now on writes wait."""
        with self._changed:
            self._closed = True
            self._passed.clear()

    def let(self, *steps: int) -> None:
        """Lets the writes of these steps go on, or all."""
        with self._changed:
            self._passed.update(steps)
            self._closed = self._closed and bool(steps)
            self._changed.notify_all()

    def wait_until_held(self, step: int) -> None:
        """Blocks until a write of this step waits."""
        with self._changed:
            held = self._changed.wait_for(lambda: step in self._waiting, PATIENCE_SECS)
        assert held, f"step {step} is not being written"

    def do(self, kind: str, path: str, call: Callable[[], Any], skipped: Any = None) -> Any:
        """Carries a call out, when it may."""
        found = _TEMPORARY.search(path)
        if kind == "write" and found is not None:
            self._hold(int(found[1]))
        result = super().do(kind, path, call, skipped)
        last = path.rpartition("/")[2]
        if kind in ("rename", "exchange") and last.isdigit():
            self.named.append(int(last))
        return result

    def _hold(self, step: int) -> None:
        with self._changed:
            if not self._closed or step in self._passed:
                return
            self._waiting.add(step)
            self._changed.notify_all()
            free = self._changed.wait_for(
                lambda: not self._closed or step in self._passed, PATIENCE_SECS
            )
            self._waiting.discard(step)
        assert free, f"nobody let step {step} go on"
