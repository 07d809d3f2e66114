"""Host memory that a save holds beyond the state; each figure in a process of its own.

In the process of the rounds, memory that peers gave back to the heap would hide what a save takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from benchmarks import disk

MIB = 1 << 20
DEFAULT_BUDGET = 1 << 30
SMALL_BUDGET = 256 * MIB
FLAT_BYTES, FLAT_EARLY, FLAT_SAVES = 64e6, 5, 50
_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        state_bytes: of the state saved.
        save_peak: of one `jaxckpt.save`, beyond what was held before it.
        checkpointer_peak: of saves by a `Checkpointer`, its memory included.
        budgeted_peak: the same with a budget of ``SMALL_BUDGET``.
        early_rss: of the whole process after ``FLAT_EARLY`` saves.
        late_rss: after ``FLAT_SAVES``.
    """

    state_bytes: int
    save_peak: int
    checkpointer_peak: int
    budgeted_peak: int
    early_rss: int
    late_rss: int


def measure_memory(nbytes: float, folder: str) -> Memory:
    """All figures for a large state of about so many bytes."""
    save = _in_a_process("save", nbytes, DEFAULT_BUDGET, folder)
    keeper = _in_a_process("checkpointer", nbytes, DEFAULT_BUDGET, folder)
    budgeted = _in_a_process("checkpointer", nbytes, SMALL_BUDGET, folder)
    flat = _in_a_process("flat", FLAT_BYTES, DEFAULT_BUDGET, folder)
    return Memory(
        state_bytes=save["state"],
        save_peak=save["peak"],
        checkpointer_peak=keeper["peak"],
        budgeted_peak=budgeted["peak"],
        early_rss=flat["early"],
        late_rss=flat["late"],
    )


def _in_a_process(kind: str, nbytes: float, budget: int, folder: str) -> dict[str, int]:
    words = [sys.executable, "-m", "benchmarks.memory", kind, str(nbytes), str(budget), folder]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        words, cwd=home, check=True, stdout=subprocess.PIPE, timeout=_TIMEOUT_SECONDS
    )
    return json.loads(done.stdout)


def _status(field: str) -> int:
    """A field of the process's status, in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def high_water() -> int:
    """The most memory that was resident since the mark was reset."""
    return _status("VmHWM")


def resident() -> int:
    """Memory that is resident now."""
    return _status("VmRSS")


def reset_high_water() -> int:
    """Starts the high-water mark anew; returns what is held now."""
    gc.collect()
    disk.trim_heap()
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")
    return resident()


def _main() -> None:
    parser = argparse.ArgumentParser(description="One memory figure, as JSON.")
    parser.add_argument("kind", choices=("save", "checkpointer", "flat"))
    parser.add_argument("nbytes", type=float)
    parser.add_argument("budget", type=int)
    parser.add_argument("folder")
    args = parser.parse_args()
    measure = {"save": _save, "checkpointer": _checkpointer, "flat": _flat}[args.kind]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(json.dumps(measure(args.nbytes, args.budget, folder)))


def _save(nbytes: float, budget: int, folder: str) -> dict[str, int]:
    import jaxckpt

    arrays, held = _arrays(nbytes)
    options = jaxckpt.Options(memory_budget_bytes=budget)
    save = jaxckpt.save  # its module is loaded before the mark is reset
    before = reset_high_water()
    save(os.path.join(folder, "state"), arrays, options=options)
    return {"state": held, "peak": high_water() - before}


def _checkpointer(nbytes: float, budget: int, folder: str) -> dict[str, int]:
    import jaxckpt

    arrays, held = _arrays(nbytes)
    options = jaxckpt.Options(memory_budget_bytes=budget)
    make = jaxckpt.Checkpointer
    before = reset_high_water()
    with make(folder, keep_last=1, options=options) as checkpointer:
        for step in range(3):
            checkpointer.save(step, arrays)
        checkpointer.wait()
        return {"state": held, "peak": high_water() - before}


def _flat(nbytes: float, budget: int, folder: str) -> dict[str, int]:
    import jaxckpt

    arrays, _ = _arrays(nbytes)
    options = jaxckpt.Options(memory_budget_bytes=budget)
    rss = {}
    with jaxckpt.Checkpointer(folder, keep_last=2, options=options) as checkpointer:
        for step in range(1, FLAT_SAVES + 1):
            checkpointer.save(step, arrays)
            checkpointer.wait()
            rss[step] = resident()
    return {"early": rss[FLAT_EARLY], "late": rss[FLAT_SAVES]}


def _arrays(nbytes: float) -> tuple[object, int]:
    """The state on the devices, its copy in numpy dropped."""
    from benchmarks import states

    states.start_devices()
    state = states.large(nbytes)
    return state.arrays, state.nbytes


if __name__ == "__main__":
    _main()
