"""What saves cost a training loop, beside orbax async and torch DCP async.

    python -m benchmarks.loop --dir DIRECTORY --out docs/benchmarks

The loop on slow storage makes a loop device whose writes the kernel limits, which needs root;
without it the loop writes to the disk as it is, and a note says so.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console

from benchmarks import states
from benchmarks.loop_process import MEMORY, PARTS, STALL, TRAINING, run_part
from benchmarks.loop_results import from_parts, write_json
from benchmarks.loop_tables import print_tables, write_markdown
from benchmarks.machine import describe

_WRITE_STEPS = 3.0
_QUICK = {"bytes": 1e8, "leaves": 100, "rounds": 2, "state": 8e6, "step": 0.05, "saves": 100}


def main() -> None:
    """Runs the parts one after another, and writes ``loop.md`` and ``loop.json``."""
    args = _arguments()
    console = Console(width=160)
    states.start_devices()
    machine = describe(args.dir)
    sizes = {
        STALL: {"nbytes": args.bytes, "leaves": args.leaves, "rounds": args.rounds},
        TRAINING: {
            "nbytes": args.state,
            "step_secs": args.step,
            "write_steps": _WRITE_STEPS,
            "secs": args.timed_steps * args.step,
            "rounds": args.rounds,
        },
        MEMORY: {"nbytes": args.memory_state, "saves": args.saves},
    }
    os.makedirs(args.out, exist_ok=True)
    parts: dict[str, dict[str, Any] | None] = dict.fromkeys(PARTS)
    for part in PARTS:
        if part in args.only:
            parts[part] = run_part(part, sizes[part], args.dir, console.print)
            # After each part, so that a run that is stopped leaves what it has.
            results = from_parts(machine, parts[STALL], parts[TRAINING], parts[MEMORY])
            write_json(results, os.path.join(args.out, "loop.json"))
            write_markdown(results, os.path.join(args.out, "loop.md"))
    print_tables(results, console)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("--bytes", type=float, default=1e9, help="of the state of 30 leaves")
    parser.add_argument("--leaves", type=int, default=1000, help="of the states of many leaves")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", type=float, default=6.4e7, help="bytes, in the loop")
    parser.add_argument("--step", type=float, default=0.6, help="seconds of a step in the loop")
    parser.add_argument("--timed-steps", type=int, default=4, help="of each loop, at least")
    parser.add_argument("--memory-state", type=float, default=3.2e7, help="bytes")
    parser.add_argument("--saves", type=int, default=1000, help="of the memory's part")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART")
    parser.add_argument("--out", default="docs/benchmarks", help="directory of the results")
    parser.add_argument("--dir", default=".", help="directory on the disk to measure")
    first, _ = parser.parse_known_args()
    if first.quick:
        parser.set_defaults(**_QUICK)
    args = parser.parse_args()
    if min(args.rounds, args.leaves, args.timed_steps, args.saves) < 1:
        parser.error("--rounds, --leaves, --timed-steps and --saves must be at least 1")
    return args


if __name__ == "__main__":
    main()
