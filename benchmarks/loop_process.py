"""One part of the benchmark of a loop in a process of its own: cores, devices and memory differ.

The last line that it prints is its result, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks import states

STALL, TRAINING, MEMORY = "stall", "training", "memory"
PARTS = (STALL, TRAINING, MEMORY)
_TIMEOUT_SECS = 1800


def run_part(
    part: str, arguments: dict[str, Any], folder: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """The result of a part; each line before it goes to ``say``.

    Raises:
        RuntimeError: the process failed; what it said is in the message.
    """
    words = [sys.executable, "-m", "benchmarks.loop_process", part, json.dumps(arguments), folder]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    lines: list[str] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if not line.startswith("{"):
                say(line.rstrip())
        if process.wait(_TIMEOUT_SECS):
            errors.seek(0)
            raise RuntimeError(f"the part {part} failed:\n{errors.read()[-4000:]}")
    return json.loads(lines[-1])


def _main() -> None:
    part, arguments, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    warnings.filterwarnings("ignore")
    # A mounted file system must not outlive the process; `with` blocks end it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="loop-", dir=folder) as place:
        found = _MEASURES[part](place, **arguments)
    print(json.dumps(found), flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


def _stall(folder: str, nbytes: float, leaves: int, rounds: int) -> dict[str, Any]:
    from benchmarks.loop_stall import measure_stalls

    states.start_devices()
    samples, settings, notes = measure_stalls(folder, nbytes, leaves, rounds, _say)
    stalls = [dataclasses.asdict(sample) for sample in samples]
    return {"stalls": stalls, "settings": settings, "notes": notes}


def _training(folder: str, **sizes: Any) -> dict[str, Any]:
    from benchmarks.loop_training import Sizes, measure_training

    return dataclasses.asdict(measure_training(folder, Sizes(**sizes), _say))


def _memory(folder: str, nbytes: float, saves: int) -> dict[str, Any]:
    from benchmarks.loop_memory import measure_memory

    states.start_devices()
    return dataclasses.asdict(measure_memory(folder, nbytes, saves))


_MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    STALL: _stall,
    TRAINING: _training,
    MEMORY: _memory,
}

if __name__ == "__main__":
    _main()
