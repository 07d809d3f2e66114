"""What each process of a measured job does; started by `job_launch.py`."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed

import jaxckpt
from benchmarks import disk, job_state
from benchmarks.cases import RESTORE, SAVE
from benchmarks.counting_store import CountingStore, account
from benchmarks.job_cases import (
    ALLGATHER,
    AUTO,
    BROADCAST,
    DIRECT,
    DISK,
    ORBAX,
    ORBAX_BROADCAST,
    PARTS,
    SLOW_REPLICATED,
    SLOW_SHARDED,
    Orbax,
    Section,
    our_options,
)
from benchmarks.job_launch import RESULT, SAY
from benchmarks.measure import WARM_UP
from benchmarks.slow_store import SharedRate, SlowStore
from jaxckpt.dist import default_coordinator
from jaxckpt.io.store import Store
from jaxckpt.io.world import World

INDEX, COUNT, PORT = map(int, os.environ["JOB"].split())
_BARRIER_MS = 1_800_000
_COUNTED = ("rchar", "wchar", "read_bytes")
_ORDER_SEED = 0


class Together:
    """What the processes do at the same time."""

    def __init__(self) -> None:
        self._barriers = 0
        self.cold = True

    def barrier(self) -> None:
        """Blocks until every process is here."""
        if COUNT > 1:
            self._barriers += 1
            client = distributed.global_state.client
            client.wait_at_barrier(f"bench/{self._barriers}", _BARRIER_MS)

    def by_first(self, call: Callable[[], Any]) -> None:
        """The first process does it, the others wait."""
        self.barrier()
        if INDEX == 0:
            call()
        self.barrier()

    def settle(self, *, cold: bool) -> None:
        """Frees, and lets the disk come to rest; nothing compiled is kept.

        A restore happens once in the life of a process, into fresh memory and with nothing
        compiled.
        """
        gc.collect()
        disk.trim_heap()
        jax.clear_caches()
        self.by_first(self._drop if cold else disk.settle)

    def timed(self, section: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of this process from a barrier to its end, and the result."""
        self.barrier()
        start = time.perf_counter()
        result = section()
        jax.block_until_ready(result)
        seconds = time.perf_counter() - start
        self.barrier()
        return seconds, result

    def _drop(self) -> None:
        self.cold = disk.settle_cold() and self.cold


class Ours:
    """A run of jaxckpt in a Store of ours; what is opened stays open."""

    def __init__(self, store: Store, directory: str) -> None:
        self._world, self._directory = World(store, default_coordinator()), directory
        self._opened: dict[str, jaxckpt.Checkpointer] = {}

    def at(self, case: str) -> jaxckpt.Checkpointer:
        """The directory with the options of a case."""
        if case not in self._opened:
            self._opened[case] = jaxckpt.Checkpointer(
                self._directory, options=our_options(case), world=self._world
            )
        return self._opened[case]

    def save(self, arrays: dict[str, jax.Array]) -> None:
        """Step 0, durable."""
        self.at(AUTO).save(0, arrays)
        self.at(AUTO).wait()

    def close(self) -> None:
        for checkpointer in self._opened.values():
            checkpointer.close()


def count(together: Together, folder: str, nbytes: float) -> dict[str, Any]:
    """Bytes that this process writes and reads in each case."""
    state = job_state.make(job_state.REPLICATED, nbytes)
    store = CountingStore()
    ours, orbax = Ours(store, os.path.join(folder, "ours")), Orbax(state.target)
    theirs = os.path.join(folder, "theirs")
    found: dict[str, Any] = {"nbytes": state.nbytes, SAVE: {}, RESTORE: {}}

    def section(operation: str, case: str, call: Callable[[], Any]) -> None:
        together.settle(cold=operation == RESTORE)
        before = account()
        store.reset()
        seconds, result = together.timed(call)
        after = account()
        counted = {name: after[name] - before[name] for name in _COUNTED}
        counted |= {"read": store.read, "written": store.written}
        found[operation][case] = counted
        if result is not None:
            state.verify(result)
        _say(f"{COUNT} processes  {operation:<7}  {case:<19}  {seconds:8.3f} s")

    for case in (DIRECT, ALLGATHER, BROADCAST, AUTO):
        ours.at(case)
    section(SAVE, AUTO, lambda: ours.save(state.arrays))
    section(SAVE, ORBAX, lambda: orbax.save(theirs, state.arrays))
    state.drop()
    for case in (DIRECT, ALLGATHER, BROADCAST, AUTO):
        section(RESTORE, case, lambda case=case: ours.at(case).restore(state.target, 0))
    section(RESTORE, ORBAX, lambda: orbax.restore(theirs))
    if COUNT > 1:
        section(RESTORE, ORBAX_BROADCAST, lambda: orbax.restore_single(theirs))
    ours.close()
    return {**found, "cold": together.cold}


def slow(
    together: Together, folder: str, nbytes: float, rounds: int, rate: float
) -> dict[str, Any]:
    """Restores from storage with a fixed rate for all processes together."""
    states: dict[str, job_state.JobState] = {}
    runs: dict[str, Ours] = {}
    shared = SharedRate(os.path.join(folder, "rate"), rate)
    for name, layout in (
        (SLOW_REPLICATED, job_state.REPLICATED),
        (SLOW_SHARDED, job_state.SHARDED),
    ):
        states[name] = job_state.make(layout, nbytes)
        runs[name] = Ours(SlowStore(shared), os.path.join(folder, layout))
        runs[name].save(states[name].arrays)
        states[name].drop()

    def call(section: Section) -> Any:
        run, target = runs[section.state], states[section.state].target
        return run.at(section.case).restore(target, 0)

    samples = _rounds(together, PARTS["slow"], rounds, call, states)
    for run in runs.values():
        run.close()
    sizes = {name: state.nbytes for name, state in states.items()}
    return {"nbytes": sizes, "samples": samples, "cold": together.cold}


def local(together: Together, folder: str, nbytes: float, rounds: int) -> dict[str, Any]:
    """Restores and saves on the local disk, beside orbax."""
    state = job_state.make(job_state.REPLICATED, nbytes)
    ours, theirs, fresh = (os.path.join(folder, name) for name in ("ours", "theirs", "fresh"))
    orbax = Orbax(state.target)
    jaxckpt.save(ours, state.arrays)
    orbax.save(theirs, state.arrays)
    saves = {
        AUTO: lambda: jaxckpt.save(fresh, state.arrays),
        ORBAX: lambda: orbax.save(fresh, state.arrays),
    }
    restores = {
        ORBAX: lambda: orbax.restore(theirs),
        ORBAX_BROADCAST: lambda: orbax.restore_single(theirs),
    }

    def call(section: Section) -> Any:
        if section.operation == SAVE:
            saves[section.case]()
            if section.case == ORBAX and INDEX == 0:
                disk.sync_tree(fresh)
            return None
        if section.case in restores:
            return restores[section.case]()
        return jaxckpt.restore(ours, state.target, options=our_options(section.case))

    def clean(section: Section) -> None:
        if section.operation == SAVE:
            together.by_first(lambda: disk.remove(fresh))

    # Saves go first: restores need the room of the arrays.
    parts = [
        [section for section in PARTS["disk"] if section.operation == operation]
        for operation in (SAVE, RESTORE)
    ]
    samples = _rounds(together, parts[0], rounds, call, {}, clean)
    state.drop()
    samples += _rounds(together, parts[1], rounds, call, {DISK: state}, clean)
    return {"nbytes": {DISK: state.nbytes}, "samples": samples, "cold": together.cold}


def _rounds(
    together: Together,
    sections: Any,
    rounds: int,
    call: Callable[[Section], Any],
    states: dict[str, job_state.JobState],
    after: Callable[[Section], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Each section once a round, in an order that changes; the first round is checked."""
    order = random.Random(_ORDER_SEED)  # the same in every process
    samples: list[dict[str, Any]] = []
    for number in (WARM_UP, *range(rounds)):
        mixed = list(sections)
        order.shuffle(mixed)
        for position, section in enumerate(mixed):
            together.settle(cold=section.operation == RESTORE)
            seconds, result = together.timed(lambda section=section: call(section))
            if number == WARM_UP and section.state in states:
                states[section.state].verify(result)
            del result
            after(section)
            samples.append(
                {
                    "state": section.state,
                    "operation": section.operation,
                    "case": section.case,
                    "round": number,
                    "position": position,
                    "seconds": seconds,
                }
            )
            when = "first" if number == WARM_UP else f"round {number + 1}"
            what = f"{section.state:<12}  {section.operation:<7}  {section.case:<19}"
            _say(f"{when:>8}  {what}  {seconds:8.3f} s")
    return samples


def _say(line: str) -> None:
    if INDEX == 0:
        print(SAY + line, flush=True)


def main() -> None:
    """Runs the part that the command line names; ends without waiting for processes that died."""
    part, arguments = sys.argv[1], json.loads(sys.argv[2])
    code = 0
    try:
        if COUNT > 1:
            jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=COUNT, process_id=INDEX)
        together = Together()
        run = {"count": count, "slow": slow, "disk": local}[part]
        print(RESULT + json.dumps(run(together, **arguments)), flush=True)
        together.barrier()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
