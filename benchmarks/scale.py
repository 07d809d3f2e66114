"""What a save costs one process of a very large job: ``python -m benchmarks.scale``.

The state is that of a trillion parameters (`trillion.py`). No data is written and no device is
needed: planning looks at shapes and at who holds what, and the primary merges indexes
(`merge_scale.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
from rich.console import Console

from benchmarks.bars import Bar
from benchmarks.machine import Machine, describe
from benchmarks.merge_scale import MergeRow, measure_merge
from benchmarks.tables import Table, about, bars_table, markdown, rich_table
from benchmarks.trillion import DEVICES_PER_PROCESS, MESHES, STATES, mesh_of
from jaxckpt.layout.cutting import cut_region
from jaxckpt.layout.save_plan import PlannedChunk, SavePlan, plan_save

CHUNK_BYTES = 64 << 20
ROUNDS = 5
MIB = 1 << 20
MERGED = "stacked"
"""The state whose indexes are merged."""
_SMALLEST = min(MESHES)
_PLAN_SECONDS, _MERGE_SECONDS, _MERGE_BYTES = 2.0, 10.0, 2 << 30
_METHOD = (
    "method: each row in a process of its own; medians of a few rounds; a merge begins with what "
    "all processes announced and ends with the last file of the item, files being in memory"
)


@dataclass(frozen=True)
class Row:
    """One state on one mesh, seen by one process. Seconds are medians, bytes are peaks.

    Attributes:
        partitions, plan, own: seconds for the partitions of all leaves, the plan, and the list of
            the process's own chunks.
        level: the most that a process writes against the mean.
        traced: what Python and numpy allocated beyond what was there before.
        grown: how much the process grew.
    """

    state: str
    devices: int
    leaves: int
    chunks: int
    own_chunks: int
    nbytes: int
    partitions: float
    plan: float
    own: float
    level: float
    traced: int
    grown: int

    @property
    def total(self) -> float:
        return self.partitions + self.plan + self.own


def main() -> None:
    """Measures every state on every mesh, each in a process of its own, and writes two files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--devices", nargs="+", type=int, default=list(MESHES), choices=MESHES)
    parser.add_argument("--states", nargs="+", default=list(STATES), choices=STATES)
    parser.add_argument("--out", default="docs/benchmarks", help="directory of the results")
    parser.add_argument("--one", choices=("plan", "merge"), help="print one row as JSON")
    args = parser.parse_args()
    if args.one:
        one = measure if args.one == "plan" else measure_merge
        print(json.dumps(asdict(one(args.states[0], args.devices[0]))))
        return
    jax.config.update("jax_platforms", "cpu")
    machine = replace(describe("."), device="none; plans and merges need none", disk="not used")
    rows = [
        Row(**_apart("plan", state, devices)) for state in args.states for devices in args.devices
    ]
    merged = [
        MergeRow(**_apart("merge", MERGED, devices))
        for devices in args.devices
        if MERGED in args.states
    ]
    bars = scale_bars(rows, merged)
    for found in (table(rows), merge_table(merged), bars_table(bars)):
        Console(width=160).print(rich_table(found))
    os.makedirs(args.out, exist_ok=True)
    write_scale(args.out, machine, rows, merged, bars)


def measure(state: str, devices: int) -> Row:
    """Plans a state for a process in the middle of the job."""
    process = devices // DEVICES_PER_PROCESS // 2
    before = _resident()
    rounds = [_plan(state, devices, process)[0] for _ in range(ROUNDS)]
    grown = _resident() - before
    tracemalloc.start()
    _, leaves, plan, own = _plan(state, devices, process)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    partitions, planned, listed = (statistics.median(r[i] for r in rounds) for i in range(3))
    busiest = max(plan.process_bytes.values())
    level = busiest * (devices // DEVICES_PER_PROCESS) / plan.nbytes
    return Row(
        state,
        devices,
        leaves,
        plan.owners.size,
        len(own),
        plan.nbytes,
        partitions,
        planned,
        listed,
        level,
        traced,
        grown,
    )


def _plan(
    state: str, devices: int, process: int
) -> tuple[tuple[float, float, float], int, SavePlan, list[PlannedChunk]]:
    """As in the first save of a job: nothing is known from before."""
    cut_region.cache_clear()
    mesh = mesh_of(devices)
    start = time.perf_counter()
    leaves = STATES[state](mesh)
    made = time.perf_counter()
    plan = plan_save(leaves, CHUNK_BYTES)
    planned = time.perf_counter()
    own = plan.owned_by(process)
    end = time.perf_counter()
    return (made - start, planned - made, end - planned), len(leaves), plan, own


def _apart(what: str, state: str, devices: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--one", what]
    command += ["--states", state, "--devices", str(devices)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def table(rows: list[Row]) -> Table:
    """The rows for people."""
    lines = [
        (
            f"{row.state}, {row.devices:,} devices",
            f"{row.leaves:,}",
            f"{row.nbytes / 1e12:.2f}",
            f"{row.chunks:,}",
            f"{row.own_chunks:,}",
            f"{row.partitions * 1e3:.1f}",
            f"{row.plan * 1e3:.1f}",
            f"{row.own * 1e3:.1f}",
            f"{row.total * 1e3:.1f}",
            f"{row.level:.4f}",
            f"{row.traced / MIB:.0f}",
            f"{row.grown / MIB:.0f}",
        )
        for row in rows
    ]
    header = (
        "", "leaves", "TB", "chunks", "own", "partitions ms", "plan ms", "own ms", "all ms",
        "level", "traced MiB", "grown MiB",
    )  # fmt: skip
    return Table("planning a save of a trillion parameters", header, lines)


def merge_table(rows: list[MergeRow]) -> Table:
    """The rows for people."""
    lines = [
        (
            f"{row.state}, {row.devices:,} devices",
            f"{row.processes:,}",
            f"{row.chunks:,}",
            f"{row.keys:,}",
            f"{row.seconds:.2f}",
            f"{row.seconds / row.chunks * 1e6:.1f}",
            f"{row.peak / MIB:.0f}",
        )
        for row in rows
    ]
    header = ("", "databases", "chunks", "keys", "s", "us a chunk", "peak MiB")
    return Table("merging the indexes of all processes on the primary", header, lines)


def scale_bars(rows: list[Row], merged: list[MergeRow]) -> list[Bar]:
    """Seconds and memory on the smallest mesh, and how they grow."""
    bars: list[Bar] = []
    for row in rows:
        if row.devices == _SMALLEST:
            what = f"plan of {row.state} on {row.devices:,} devices"
            wanted, found = f"at most {_PLAN_SECONDS:g} s", f"{row.total:.3f} s"
            bars.append(Bar(what, wanted, found, row.total <= _PLAN_SECONDS))
    for one in merged:
        if one.devices == _SMALLEST:
            what = f"merge of {one.state} on {one.devices:,} devices"
            wanted, found = f"at most {_MERGE_SECONDS:g} s", f"{one.seconds:.2f} s"
            bars.append(Bar(what, wanted, found, one.seconds <= _MERGE_SECONDS))
            wanted, found = f"at most {_MERGE_BYTES / MIB:.0f} MiB", f"{one.peak / MIB:.0f} MiB"
            bars.append(Bar(f"{what}, peak memory", wanted, found, one.peak <= _MERGE_BYTES))
    return bars + _growth(rows, merged)


def _growth(rows: list[Row], merged: list[MergeRow]) -> list[Bar]:
    """The largest mesh against the smallest."""
    times: dict[str, list[tuple[int, float, int]]] = {}
    for row in rows:
        times.setdefault(f"plan of {row.state}", []).append((row.devices, row.total, row.chunks))
    for one in merged:
        key = f"merge of {one.state}"
        times.setdefault(key, []).append((one.devices, one.seconds, one.chunks))
    bars: list[Bar] = []
    for what, found in times.items():
        (few, early, chunks), (many, late, more) = min(found), max(found)
        if few < many:
            wanted, grown = more / chunks, late / early
            bars.append(
                Bar(
                    f"{what}: time on {many:,} devices over {few:,}",
                    f"at most {wanted:.2f}x, as the chunks",
                    f"{grown:.2f}x",
                    grown <= wanted,
                )
            )
    return bars


def write_scale(
    out: str, machine: Machine, rows: list[Row], merged: list[MergeRow], bars: list[Bar]
) -> None:
    """``scale.md`` and ``scale.json``."""
    parts = ["# A trillion parameters", about(machine, _METHOD)]
    parts += [markdown(t) for t in (table(rows), merge_table(merged), bars_table(bars)) if t.rows]
    with open(os.path.join(out, "scale.md"), "w") as file:
        file.write("\n\n".join(parts) + "\n")
    content = {
        "machine": asdict(machine),
        "plans": [asdict(row) for row in rows],
        "merges": [asdict(row) for row in merged],
        "bars": [asdict(bar) for bar in bars],
    }
    with open(os.path.join(out, "scale.json"), "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
