"""The notice that a process will be ended: SIGTERM, or what jax's coordination service says."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from jaxckpt.dist import preempted_together
from jaxckpt.io.world import World


class Preemption:
    """Tells a training loop that it will be ended.

    In one process a SIGTERM says so. It is handled as long as such an object is open, and only
    once: a second one has its usual effect. A handler of the program's own is called as well. In a
    job jax's preemption service says so, at the same call of every process.

    Args:
        enabled: False never says so and leaves signals alone.
    """

    def __init__(self, world: World, *, enabled: bool) -> None:
        self._world, self._enabled = world, enabled
        self._calls = 0
        self.at_ns: int | None = None  # of the monotonic clock
        self._alone = world.coordinator.process_count == 1
        self._heard = enabled and self._alone and _sigterm.listen(self)

    def notice(self) -> None:
        """The process was told. Called by the signal's handler."""
        if self.at_ns is None:
            self.at_ns = self._world.monotonic_ns()

    def reached(self) -> bool:
        """Whether the job is to save and stop; every process must ask equally often."""
        self._calls += 1
        asks = self._enabled and not self._alone and self.at_ns is None
        # Counted in calls, not in steps: the service knows only numbers without gaps.
        if asks and preempted_together(self._calls):
            self.notice()
        return self.at_ns is not None

    def give_back(self) -> None:
        """The loop goes on all the same: the signal has the effect that it would have had.

        The notice is forgotten: a program that outlives it trains and saves as before.
        """
        self.at_ns = None
        if self._heard:
            self.close()
            _sigterm.deliver()

    def close(self) -> None:
        """Stops listening."""
        self._heard = False
        _sigterm.forget(self)


class _Sigterm:
    """One handler for all loops of the process."""

    def __init__(self) -> None:
        self._listeners: weakref.WeakSet[Preemption] = weakref.WeakSet()
        self._before: Any = signal.SIG_DFL
        self._installed = False

    def listen(self, listener: Preemption) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False  # only there a handler can be set
        before = signal.getsignal(signal.SIGTERM)
        if before is None or before == signal.SIG_IGN:
            return False  # somebody outside Python handles it, or nobody is to
        self._listeners.add(listener)
        if not self._installed:
            self._before, self._installed = before, True
            signal.signal(signal.SIGTERM, self._told)
        return True

    def forget(self, listener: Preemption) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._uninstall()

    def deliver(self) -> None:
        """As if nobody had listened. A handler of the program's own has been called already."""
        if self._before == signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)

    def _uninstall(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if self._installed and main and signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self._before)
            self._installed = False

    def _told(self, number: int, frame: FrameType | None) -> None:
        listeners = list(self._listeners)
        for listener in listeners:
            listener.notice()
        before: Callable[[int, FrameType | None], Any] | Any = self._before
        self._uninstall()
        if callable(before):
            before(number, frame)
        elif not listeners:  # all went without a word, or on other threads: nobody would stop
            self.deliver()


_sigterm = _Sigterm()
