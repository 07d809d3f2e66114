"""What the journal costs a training loop: a call of `Recorder.step`, and its share of a step.

    python -m benchmarks.journal --dir DIRECTORY --out docs/benchmarks

The journal lies on the disk of ``--dir`` and is written as in a run. A step is a wait of
10 ms; what is measured is the time inside the recorder's calls, so that the wait's own spread is
not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import Machine, describe
from benchmarks.tables import about
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.world import local_world
from jaxckpt.recording import Recorder

STEP_SECS = 0.010
BAR = 0.001
"""Share of a step of 10 ms that the journal may take."""


@dataclass(frozen=True)
class Round:
    """One loop. Seconds; the share is that of the loop's steps of 10 ms.

    ``empty_secs`` is the mean of an empty call, timed in the same way in a loop of its own; it is
    taken off the share, since reading the timer is none of the journal's cost.
    """

    steps: int
    empty_secs: float
    median_secs: float
    p99_secs: float
    largest_secs: float
    share: float
    busy_secs_per_call: float
    journal_bytes: int


class Empty:
    """A recorder that does nothing."""

    def step(self, step: int) -> None:
        """Nothing."""


def timed_calls(recorder: Recorder | Empty, steps: int) -> list[float]:
    """The seconds of each call in a loop of steps."""
    spent: list[float] = []
    for step in range(1, steps + 1):
        time.sleep(STEP_SECS)
        began = time.perf_counter()
        recorder.step(step)
        spent.append(time.perf_counter() - began)
    return spent


def measure(directory: str, steps: int) -> Round:
    """One loop of steps of 10 ms, and one of calls without any wait."""
    with tempfile.TemporaryDirectory(dir=directory) as run:
        recorder = Recorder(local_world(Coordinator()), run)
        recorder.start(processes=1, devices=1)
        recorder.begins(0)
        empty = statistics.mean(timed_calls(Empty(), steps // 3))
        spent = timed_calls(recorder, steps)
        recorder.flush()
        size = (Path(run) / "journal.jsonl").stat().st_size
        calls = 200_000
        began = time.perf_counter()
        for step in range(steps + 1, steps + 1 + calls):
            recorder.step(step)
        busy = (time.perf_counter() - began) / calls
        recorder.close()
    ordered = sorted(spent)
    return Round(
        steps=steps,
        median_secs=statistics.median(spent),
        p99_secs=ordered[int(0.99 * len(ordered))],
        largest_secs=ordered[-1],
        empty_secs=empty,
        share=(statistics.mean(spent) - empty) / STEP_SECS,
        busy_secs_per_call=busy,
        journal_bytes=size,
    )


def table(rounds: list[Round], machine: Machine) -> str:
    """The results as Markdown."""
    shares = [r.share for r in rounds]
    method = (
        f"method: {len(rounds)} loops of {rounds[0].steps} steps, each a wait of "
        f"{STEP_SECS * 1e3:.0f} ms; every call of the recorder is timed, those that write too; "
        "off the share is taken what the timing of an empty call shows in the same loop; the "
        "journal lies on the disk above"
    )
    lines = [
        "# What the journal costs a training loop",
        "",
        about(machine, method),
        "",
        "| | median of the loops | least | most |",
        "|:---|---:|---:|---:|",
    ]
    for name, unit, values in (
        ("an empty call, mean", "us", [r.empty_secs * 1e6 for r in rounds]),
        ("a call, median", "us", [r.median_secs * 1e6 for r in rounds]),
        ("a call, 99th percentile", "us", [r.p99_secs * 1e6 for r in rounds]),
        ("the slowest call, which writes", "us", [r.largest_secs * 1e6 for r in rounds]),
        ("a call in a loop without waits", "us", [r.busy_secs_per_call * 1e6 for r in rounds]),
        ("share of the training time", "%", [100 * share for share in shares]),
    ):
        cells = (statistics.median(values), min(values), max(values))
        lines.append(f"| {name} | " + " | ".join(f"{cell:.3g} {unit}" for cell in cells) + " |")
    met = "met" if statistics.median(shares) < BAR else "not met"
    lines += ["", f"Bar: under {100 * BAR:g} % of a step of 10 ms: {met}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=".", help="on the disk to measure")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds = [measure(arguments.dir, arguments.steps) for _ in range(arguments.rounds)]
    machine = describe(arguments.dir)
    text = table(rounds, machine)
    print(text)
    if arguments.out:
        found = {"machine": asdict(machine), "rounds": [asdict(r) for r in rounds]}
        (arguments.out / "journal.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "journal.md").write_text(text)


if __name__ == "__main__":
    main()
