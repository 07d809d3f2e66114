"""The two rules of a loop that saves every so many steps and keeps the newest: numbers only."""

from __future__ import annotations

from collections.abc import Sequence


def is_due(step: int, save_every: int) -> bool:
    """Whether a loop that saves every ``save_every`` steps saves this one."""
    return step % save_every == 0


def steps_to_remove(steps: Sequence[int], keep_last: int, just_saved: int) -> list[int]:
    """The steps that may go once ``just_saved`` is durable, oldest first.

    The newest ``keep_last`` stay, and ``just_saved`` always: a loop that went back to an older
    step and saves on from there must not lose what it saves.

    Args:
        steps: the whole steps that are listed; a damaged or unfinished one never counts as kept.
        keep_last: how many to keep.
    """
    ordered = sorted(set(steps) | {just_saved})
    kept = set(ordered[-keep_last:]) | {just_saved}
    return [s for s in ordered if s not in kept]
