"""Starts the processes of a job on this machine and collects what they found out."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

RESULT, SAY = "RESULT ", "SAY "
"""What lines begin with that are meant for who started the job; jax writes others."""
_TAIL = 4000
_HOME = Path(__file__).parent.parent


def run_job(
    part: str,
    processes: int,
    devices: int,
    arguments: dict[str, Any],
    say: Callable[[str], None],
    limit_seconds: float = 3600,
) -> list[Any]:
    """Runs one part in so many processes; returns the result of each.

    Args:
        devices: of each process.
        say: gets the lines that the first process prints meanwhile.

    Raises:
        RuntimeError: a process failed; with the end of what it said.
    """
    with contextlib.ExitStack() as stack:
        port = _free_port()
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2 * processes)]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.job_process", part, json.dumps(arguments)],
                stdout=subprocess.PIPE if index == 0 else outputs[2 * index],
                stderr=outputs[2 * index + 1],
                env=_environment(index, processes, devices, port),
                cwd=_HOME,
                text=True,
            )
            for index in range(processes)
        ]
        limit = threading.Timer(limit_seconds, _kill, [running])
        limit.start()
        try:
            results = {0: _follow(running[0], say)}
            codes = [process.wait() for process in running]
        finally:
            limit.cancel()
            _kill(running)
        for index in range(1, processes):
            outputs[2 * index].seek(0)
            results[index] = _last_result(outputs[2 * index])
        # The service of the first process may end before others have left it, which aborts them.
        if None in results.values():
            said = [_tail(outputs[2 * index + 1]) for index in range(processes)]
            raise RuntimeError(f"the job ended with {codes}:\n" + "\n".join(said))
        return [results[index] for index in range(processes)]


def _environment(index: int, processes: int, devices: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JOB": f"{index} {processes} {port}",
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _follow(process: subprocess.Popen[str], say: Callable[[str], None]) -> Any:
    """Hands the lines on until the process ends; returns its result."""
    result = None
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.startswith(RESULT):
                result = json.loads(line.removeprefix(RESULT))
            elif line.startswith(SAY):
                say(line.removeprefix(SAY).rstrip())
    return result


def _last_result(lines: IO[str]) -> Any:
    found = [line for line in lines if line.startswith(RESULT)]
    return json.loads(found[-1].removeprefix(RESULT)) if found else None


def _tail(file: IO[str]) -> str:
    file.seek(0)
    return file.read()[-_TAIL:]


def _kill(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
