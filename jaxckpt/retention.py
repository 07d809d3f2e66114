"""What stays of a run: the facts about its steps, and the policy's answers."""

from __future__ import annotations

from jaxckpt import policy
from jaxckpt.io.store import Store
from jaxckpt.places import scan_steps


class Retention:
    """Says which steps may go, and which snapshots may be dropped.

    Args:
        keep_last: how many steps stay; None for all.
    """

    def __init__(self, store: Store, run: str, keep_last: int | None) -> None:
        self._store, self._run, self._keep_last = store, run, keep_last

    def must_keep(self, step: int) -> bool:  # noqa: ARG002
        """Whether a step is to be kept even when newer ones are durable."""
        return self._keep_last is None

    def removable(self, just_saved: int) -> list[int]:
        """The steps that may go once ``just_saved`` is durable and read back, oldest first."""
        if self._keep_last is None:
            return []
        steps = scan_steps(self._store, self._run).whole
        return policy.steps_to_remove(steps, self._keep_last, just_saved)
