"""Measures jobs of several processes on this machine: ``python -m benchmarks.job``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import tempfile
import time
from typing import Any

import jax
from rich.console import Console

from benchmarks.cases import RESTORE, SAVE
from benchmarks.job_draw import draw
from benchmarks.job_launch import run_job
from benchmarks.job_results import Count, JobResults, count_of, write_json
from benchmarks.job_tables import print_tables, write_markdown
from benchmarks.machine import describe
from benchmarks.measure import Sample, summarize

_PARTS = ("count", "slow", "disk")
_COUNTED_JOBS = {1: 2, 2: 2, 4: 2, 8: 1}
"""Processes, and devices of each."""
_TIMED_JOB = 4, 2
_COUNTED_BYTES, _SLOW_SHARE = 200e6, 4
"""What is counted does not depend on the size, and on slow storage the rate decides."""


def main() -> None:
    """Runs everything asked for and writes the three files."""
    args = _arguments()
    console = Console()
    jax.config.update("jax_platforms", "cpu")
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as folder:
        results = _measure(args, os.path.abspath(folder), console)
    print_tables(results, console)
    write_json(results, os.path.join(args.out, "job.json"))
    picture = "job.png" if draw(results, os.path.join(args.out, "job.png")) else None
    write_markdown(results, os.path.join(args.out, "job.md"), picture)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job", description=__doc__)
    parser.add_argument("--bytes", type=float, default=1e9, help="of the state on the local disk")
    parser.add_argument("--rate", type=float, default=50e6, help="of the slow storage, bytes/s")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--out", default="docs/benchmarks", help="directory of the results")
    parser.add_argument("--dir", default=".", help="directory on the disk to measure")
    parser.add_argument("--only", nargs="+", default=_PARTS, choices=_PARTS, help="parts")
    args = parser.parse_args()
    if args.repeats < 1 or args.bytes < 1 or args.rate <= 0:
        parser.error("--repeats, --bytes and --rate must be at least 1")
    return args


def _measure(args: argparse.Namespace, folder: str, console: Console) -> JobResults:
    started = time.monotonic()
    machine = describe(folder)
    machine = dataclasses.replace(
        machine,
        device="virtual CPU devices, 2 in each process (1 where there are 8 processes)",
    )
    counts: list[Count] = []
    samples: list[Sample] = []
    sizes: dict[str, int] = {}
    counted_bytes, cold = 0, True
    if "count" in args.only:
        counted = min(args.bytes, _COUNTED_BYTES)
        for processes, devices in _COUNTED_JOBS.items():
            found = _job("count", folder, console, processes, devices, counted)
            counts += _counts(processes, found)
            counted_bytes, cold = found[0]["nbytes"], cold and found[0]["cold"]
    timed: dict[str, dict[str, Any]] = {
        "slow": {"nbytes": args.bytes / _SLOW_SHARE, "rate": args.rate},
        "disk": {"nbytes": args.bytes},
    }
    for part, arguments in timed.items():
        if part in args.only:
            found = _job(part, folder, console, *_TIMED_JOB, **arguments, rounds=args.repeats)
            samples += _slowest(found)
            sizes |= found[0]["nbytes"]
            cold = cold and found[0]["cold"]
    seconds = time.monotonic() - started
    summaries = summarize(samples)
    return JobResults(
        machine, args.rate, counted_bytes, sizes, counts, samples, summaries, cold, seconds
    )


def _job(
    part: str,
    folder: str,
    console: Console,
    processes: int,
    devices: int,
    nbytes: float,
    **arguments: Any,
) -> list[Any]:
    """Runs a part in a directory of its own; returns what each process found."""
    own = os.path.join(folder, f"{part}-{processes}")
    os.mkdir(own)
    try:
        return run_job(
            part,
            processes,
            devices,
            {"folder": own, "nbytes": nbytes, **arguments},
            lambda line: console.print(line, highlight=False),
        )
    finally:
        shutil.rmtree(own)


def _counts(processes: int, found: list[dict[str, Any]]) -> list[Count]:
    nbytes = found[0]["nbytes"]
    return [
        count_of(processes, operation, case, nbytes, [one[operation][case] for one in found])
        for operation in (SAVE, RESTORE)
        for case in found[0][operation]
    ]


def _slowest(found: list[dict[str, Any]]) -> list[Sample]:
    """A section has ended when its last process has."""
    return [
        Sample(**{**same[0], "seconds": max(one["seconds"] for one in same)})
        for same in zip(*(one["samples"] for one in found), strict=True)
    ]


if __name__ == "__main__":
    main()
