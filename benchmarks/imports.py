"""What `import jaxckpt` costs a process that imports jax and orbax anyway."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import dataclass

_TIMED = """
from time import perf_counter
start = perf_counter()
import jax, orbax.checkpoint
middle = perf_counter()
import jaxckpt
jaxckpt.Checkpointer, jaxckpt.save, jaxckpt.ShardedSave
print(middle - start, perf_counter() - middle)
"""
_LEAN = """
import sys
import jaxckpt, jaxckpt.format.index, jaxckpt.io.local
print("jax" in sys.modules or "orbax" in sys.modules)
"""
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Imports:
    """Medians in seconds.

    Attributes:
        jax_and_orbax: what both cost without jaxckpt.
        beyond: what jaxckpt adds, all its doors used.
        beyond_samples: every time it was measured.
        lean: whether its files' layers leave jax and orbax out.
    """

    jax_and_orbax: float
    beyond: float
    beyond_samples: list[float]
    lean: bool


def measure_imports(repeats: int) -> Imports:
    """Each time in a fresh process; one before them fills the page cache."""
    _run(_TIMED)
    times = [tuple(float(word) for word in _run(_TIMED).split()) for _ in range(repeats)]
    beyond = [ours for _, ours in times]
    return Imports(
        jax_and_orbax=statistics.median(theirs for theirs, _ in times),
        beyond=statistics.median(beyond),
        beyond_samples=beyond,
        lean=_run(_LEAN).strip() == "False",
    )


def _run(program: str) -> str:
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_SECONDS
    )
    return done.stdout
