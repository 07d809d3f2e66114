"""Real jobs of several processes on this machine: `jax.distributed` on the CPU with gloo.

A scenario is a function of a module in ``scenarios``, run in every process of a job; what it
returns comes back as JSON. Jobs cost seconds to start, so a scenario does many things in one.
"""

from __future__ import annotations

import json
import os
import signal
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
ABORTED = -signal.SIGABRT
"""How jax's coordination service ends a process after another one has died."""
KILLED = -signal.SIGKILL


@dataclass
class Outcome:
    """How a process of a job ended."""

    code: int
    result: Any
    stderr: str


class Job:
    """Processes that are running.

    Args:
        scenario: module and function, ``round_trips.grid``.
        args: for the function; as JSON.
    """

    def __init__(self, scenario: str, processes: int, devices: int = 2, **args: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2 * processes)]  # noqa: SIM115
        command = [sys.executable, "-m", "scenarios", scenario, json.dumps(args, default=str)]
        self.processes = [
            subprocess.Popen(
                command,
                stdout=self._files[2 * i],
                stderr=self._files[2 * i + 1],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "JAX_NUM_CPU_DEVICES": str(devices),
                    "JAX_ENABLE_X64": "1",
                    "JOB": f"{i} {processes} {port} {HEARTBEAT_SECS}",
                },
                cwd=HERE,
            )
            for i in range(processes)
        ]

    def wait(self, timeout_secs: float = 60) -> list[Outcome]:
        """Blocks until all processes have ended; what is left after the time is an error."""
        end = time.monotonic() + timeout_secs
        late: list[subprocess.Popen[bytes]] = []
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # writes where its threads are
                late.append(process)
        if late:
            time.sleep(0.5)
        for process in late:
            process.kill()
            process.wait()
        outcomes: list[Outcome] = []
        for i, process in enumerate(self.processes):
            out, err = [_text(file) for file in self._files[2 * i : 2 * i + 2]]
            lines = [x for x in out.splitlines() if x.startswith("RESULT ")]
            result = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
            outcomes.append(Outcome(process.returncode, result, err))
        stderrs = "\n".join(f"process {i}:\n{o.stderr[-4000:]}" for i, o in enumerate(outcomes))
        assert not late, f"the job did not end in {timeout_secs} s. {stderrs}"
        return outcomes


def _text(file: Any) -> str:
    file.seek(0)
    text = file.read()
    file.close()
    return text


def run_job(
    scenario: str, processes: int, timeout_secs: float = 60, devices: int = 2, **args: Any
) -> list[Any]:
    """Runs a job that must succeed in every process; returns the results."""
    outcomes = Job(scenario, processes, devices, **args).wait(timeout_secs)
    stderrs = "\n".join(
        f"process {i} ended with {o.code}:\n{o.stderr[-4000:]}" for i, o in enumerate(outcomes)
    )
    assert all(o.code == 0 for o in outcomes), stderrs
    return [outcome.result for outcome in outcomes]
