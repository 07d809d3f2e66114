"""Waiting for threads that use memory or files which must not be taken from under them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

_LOOK_SECS = 1.0


class AbandonedError(Exception):
    """The save failed elsewhere; this part of it has nothing left to do."""


def wait_for_all(
    futures: Iterable[Future[Any]],
    on_interrupt: Callable[[BaseException], None] | None = None,
    look: Callable[[], None] | None = None,
) -> None:
    """Waits until every task has ended, also through an interrupt.

    ``look`` is called about once a second; what it raises counts as an interrupt.

    A Ctrl-C must not return while threads still copy into memory that the caller gives back
    next. It is raised afterwards, unless ``on_interrupt`` takes it.
    """
    pending = list(futures)
    interrupt: BaseException | None = None
    while True:
        try:
            while wait(pending, _LOOK_SECS if look else None).not_done:
                if look is not None:
                    look()
            break
        except BaseException as error:  # noqa: BLE001  (raised below)
            interrupt, look = interrupt or error, None
            if on_interrupt is not None:
                on_interrupt(error)
    if interrupt is not None and on_interrupt is None:
        raise interrupt
