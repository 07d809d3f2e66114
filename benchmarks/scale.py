"""What planning costs one process of a very large job: ``python -m benchmarks.scale``.

The state is that of a trillion parameters (`trillion.py`). Nothing is written and no device is
needed: planning looks at shapes and at who holds what.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass

from rich.console import Console

from benchmarks.tables import Table, rich_table
from benchmarks.trillion import DEVICES_PER_PROCESS, MESHES, STATES, mesh_of
from jaxckpt.layout.cutting import cut_region
from jaxckpt.layout.save_plan import PlannedChunk, SavePlan, plan_save

CHUNK_BYTES = 64 << 20
ROUNDS = 5
MIB = 1 << 20


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


def main() -> list[Row]:
    """Measures every state on every mesh, each in a process of its own, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--devices", nargs="+", type=int, default=list(MESHES), choices=MESHES)
    parser.add_argument("--states", nargs="+", default=list(STATES), choices=STATES)
    parser.add_argument("--one", action="store_true", help="print one row as JSON")
    args = parser.parse_args()
    if args.one:
        row = measure(args.states[0], args.devices[0])
        print(json.dumps(asdict(row)))
        return [row]
    rows = [_apart(state, devices) for state in args.states for devices in args.devices]
    Console(width=160).print(rich_table(table(rows)))
    # The merge of the processes' indexes is measured here next: its own rows and table.
    return rows


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


def _apart(state: str, devices: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.scale", "--one"]
    command += ["--states", state, "--devices", str(devices)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Row(**json.loads(done.stdout))


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


if __name__ == "__main__":
    main()
