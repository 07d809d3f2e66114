"""The Coordinator: how the processes of a job tell one another what they did."""

from __future__ import annotations

from typing import Protocol


class Coordinator(Protocol):
    """All processes of the job call each method in the same order."""

    process_index: int
    process_count: int

    def exchange(self, name: str, payload: bytes) -> list[bytes]:
        """Gives ``payload`` to all and returns everybody's, by process index.

        Blocks until every process has called it with this name.
        """
        ...


class SingleProcess:
    """A job of one process."""

    process_index = 0
    process_count = 1

    def exchange(self, name: str, payload: bytes) -> list[bytes]:
        """Only this process's own."""
        del name
        return [payload]
