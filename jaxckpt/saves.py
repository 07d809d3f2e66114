"""The saves of a loop that are in flight, or whose errors nobody has heard of yet."""

from __future__ import annotations

import functools
import threading
import warnings
from concurrent.futures import wait
from typing import Any

from jaxckpt.errors import PreemptedError
from jaxckpt.io.engine import Engine
from jaxckpt.step_save import THREAD_NAMES, StepRequest, StepSave, Tools


class Saves:
    """For one thread, the one that trains.

    Attributes:
        dropped: how many snapshots were dropped for newer ones.
        durable_secs: seconds from call to durable, of saves that nobody has asked about yet.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._saves: list[StepSave] = []
        self.dropped = 0
        self.durable_secs: list[float] = []

    @property
    def any(self) -> bool:
        """Whether some save is in flight."""
        return any(not save.done.done() for save in self._saves)

    def begin(self, request: StepRequest, state: Any) -> StepSave:
        """Begins a save. Blocks until the state is copied, if the request is not lazy."""
        self.wait_staged()
        self._sort_out()
        known = [save.number for save in self._saves if save.done.done()]
        save = StepSave(self._tools, request, known, state)
        self._saves.append(save)
        return save

    def raise_known(self, save: StepSave) -> None:
        """Raises the errors of earlier saves that all processes knew of when this one began."""
        failed = [earlier for earlier in self._saves if earlier.number in save.failed]
        self._raise(failed, f"step {save.step} is being saved nevertheless")

    def staged(self) -> bool:
        """Whether the state of the last save is copied."""
        return not self._saves or self._saves[-1].staged.is_set()

    def wait_staged(self) -> None:
        """Blocks until the state of the last save is copied."""
        if self._saves:
            self._saves[-1].staged.wait()

    def wait(self) -> None:
        """Blocks until every save has ended; raises the first error."""
        wait([save.done for save in self._saves])
        self._raise(list(self._saves))

    def wait_until(self, save: StepSave, secs: float, cleaning_secs: float) -> bool:
        """Blocks until a save has ended, or gives up all that are in flight after some time.

        Returns:
            Whether it ended; its error, if any, is left for the next call.
        """
        wait([save.done], max(0.0, secs))
        if not save.done.done() or isinstance(save.done.exception(), PreemptedError):
            self.give_up(cleaning_secs)
        return save.done.done() and not isinstance(save.done.exception(), PreemptedError)

    def give_up(self, cleaning_secs: float) -> None:
        """Ends all that are in flight and waits a moment until they have removed what they made."""
        going = [save for save in self._saves if not save.done.done()]
        for save in going:
            save.give_up(PreemptedError(save.step))
        wait([save.done for save in going], cleaning_secs)
        self._saves = [
            save
            for save in self._saves
            if save.done.done() and not isinstance(save.done.exception(), PreemptedError)
        ]

    def _sort_out(self) -> None:
        """Those that have ended well need no more attention."""
        self._forget([s for s in self._saves if s.done.done() and s.done.exception() is None])

    def _forget(self, saves: list[StepSave]) -> None:
        for save in saves:
            self.dropped += save.dropped_for is not None
            if save.durable_secs is not None:
                self.durable_secs.append(save.durable_secs)
        self._saves = [save for save in self._saves if save not in saves]

    def _raise(self, saves: list[StepSave], note: str = "") -> None:
        """Raises the first error among saves that have ended or are about to; each error once."""
        errors = [error for save in saves if (error := save.done.exception()) is not None]
        self._forget(saves)
        if not errors:
            return
        for other in errors[1:]:
            errors[0].add_note(f"besides, another save failed: {other}")
        if note:
            errors[0].add_note(note)
        raise errors[0]

    def shut_down(self, directory: str, engine: Engine) -> None:
        """Waits for all and warns of errors that nobody has heard of; from any thread."""
        if threading.current_thread().name.startswith(THREAD_NAMES):
            # The garbage collector runs wherever it likes, also on a thread that a save needs: that
            # one can not wait for itself.
            target = functools.partial(self._shut_down, directory, engine)
            threading.Thread(target=target, name="jaxckpt-end").start()
        else:
            self._shut_down(directory, engine)

    def _shut_down(self, directory: str, engine: Engine) -> None:
        saves, self._saves = self._saves, []
        wait([save.done for save in saves])
        engine.close()
        for save in saves:
            error = save.done.exception()
            if error is not None:
                warnings.warn(
                    f"a save to {directory} failed and nobody waited for it: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
