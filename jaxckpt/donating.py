"""Whether a loop donates the states that it saves: then views would cost it more than copies.

On the CPU backend a save may hold views of the arrays and copy behind the caller's back. They are
safe: jax leaves the memory of an array alone as long as somebody looks at it, and a step that is
given such an array to reuse makes new memory. That costs more than the copy would have; so a loop
that donates gets copies, and one that does not gets views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LEAST_BYTES = 64 << 10  # a counter may not be donated though everything else is


class Donations:
    """Finds out by keeping one small array of each saved state until the next save."""

    def __init__(self) -> None:
        self._kept: Any = None

    def views_serve(self) -> bool:
        """Whether the state of the save before was not donated; False where nobody knows yet."""
        return self._kept is not None and not self._kept.is_deleted()

    def choose(self, sources: Sequence[Any], viewable: Sequence[int]) -> int:
        """Keeps one of the arrays; its number, -1 if there is none.

        The save must not hold a view of it, or jax could not take its memory.

        Args:
            sources: the arrays of the state by number.
            viewable: the numbers of those that a view would do for.
        """
        self._kept = None
        sizes = [(sources[n].nbytes, n) for n in viewable]
        enough = [size for size in sizes if size[0] >= _LEAST_BYTES]
        nbytes, chosen = min(enough) if enough else max(sizes, default=(0, -1))
        if not nbytes:
            return -1
        self._kept = sources[chosen]
        return chosen
