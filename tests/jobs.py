"""Real jobs of several processes on this machine: `jax.distributed` on the CPU with gloo.

A scenario is a function of `scenarios.py`, run in every process of a job; what it returns comes
back as JSON. Jobs cost seconds to start, so a scenario does many things in one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEARTBEAT_SECS = 5


@dataclass
class Outcome:
    """How a process of a job ended."""

    code: int
    result: Any
    stderr: str


class Job:
    """Processes that are running."""

    def __init__(
        self,
        scenario: str,
        processes: int,
        devices: int = 2,
        env: dict[str, str] | None = None,
        **args: Any,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2 * processes)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "scenarios.py"),
                    scenario,
                    json.dumps(args, default=str),
                ],
                stdout=self._files[2 * i],
                stderr=self._files[2 * i + 1],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "JAX_NUM_CPU_DEVICES": str(devices),
                    "JAX_ENABLE_X64": "1",
                    "JOB": f"{i} {processes} {port} {HEARTBEAT_SECS}",
                    **(env or {}),
                },
                cwd=HERE,
            )
            for i in range(processes)
        ]

    def wait(self, timeout_secs: float = 120) -> list[Outcome]:
        end = time.monotonic() + timeout_secs
        outcomes: list[Outcome] = []
        try:
            for process in self.processes:
                process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        late = [p for p in self.processes if p.poll() is None]
        for process in late:
            process.kill()
            process.wait()
        for i, process in enumerate(self.processes):
            texts = []
            for file in self._files[2 * i : 2 * i + 2]:
                file.seek(0)
                texts.append(file.read())
                file.close()
            lines = [x for x in texts[0].splitlines() if x.startswith("RESULT ")]
            result = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
            outcomes.append(Outcome(process.returncode, result, texts[1]))
        assert not late, "the job did not end: " + "\n".join(o.stderr[-2000:] for o in outcomes)
        return outcomes


def run_job(
    scenario: str, processes: int, timeout_secs: float = 120, devices: int = 2, **args: Any
) -> list[Any]:
    """Runs a job that must succeed in every process; returns the results."""
    outcomes = Job(scenario, processes, devices, **args).wait(timeout_secs)
    for i, outcome in enumerate(outcomes):
        assert outcome.code == 0, (
            f"process {i} ended with {outcome.code}:\n{outcome.stderr[-4000:]}"
        )
    return [outcome.result for outcome in outcomes]
