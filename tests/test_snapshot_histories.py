"""Random histories of a loop with several snapshots in flight and a storage that fails at times."""

from __future__ import annotations

import contextlib
import errno
import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import world_of

from jaxckpt import Checkpointer, Options, policy
from jaxckpt.errors import JaxckptError, StorageError
from jaxckpt.ettr.records import JOURNAL_NAME, parse_journal
from jaxckpt.io.store import read_file
from jaxckpt.policy import StepInfo
from jaxckpt.retention import time_of
from jaxckpt.testing.faulty_store import MUTATING, FaultyStore
from jaxckpt.testing.memory_store import MemoryStore

RUN = "/run"
pytestmark = pytest.mark.timeout(120)
KEEP: list[Any] = [
    policy.KeepAll(),
    policy.KeepLast(1),
    policy.KeepLast(3),
    policy.KeepLast(1) | policy.KeepEverySteps(4),
    policy.KeepBest(2, "loss"),
    policy.KeepLast(2) | policy.KeepSteps(frozenset({5, 6, 7})),
]


class FlakyStore(FaultyStore):
    """Calls fail now and then, unless it is well; the journal's do not."""

    def __init__(self, inner: MemoryStore, seed: int, share: float) -> None:
        super().__init__(inner)
        self._chance, self._share = random.Random(seed), share
        self.well = True

    def do(self, kind: str, path: str, call: Any, skipped: Any = None) -> Any:
        faulty = kind in MUTATING and JOURNAL_NAME not in path and not self.well
        if faulty and self._chance.random() < self._share:
            raise StorageError(kind, path, OSError(errno.EIO, "now and then"))
        return super().do(kind, path, call, skipped)


def state(k: int) -> dict[str, Any]:
    return {"a": jnp.full(50, k), "b": np.full(2000, k), "k": k}


@pytest.mark.parametrize("seed", range(40))
def test_a_history_loses_nothing_that_was_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    inner = MemoryStore(has_exchange=chance.random() < 0.8)
    store = FlakyStore(inner, seed, chance.choice((0.0, 0.01, 0.03)))
    keep = chance.choice(KEEP)
    options = Options(memory_budget_bytes=16 << 20, in_flight=chance.randint(1, 4))
    calls = raised = 0
    failures: list[str] = []
    acknowledged: set[int] = set()
    values: dict[int, set[int]] = {}  # of every step: what it may hold
    ckpt = Checkpointer(RUN, options=options, world=world_of(store), keep_policy=keep)
    good = 0  # once there is a step there always is one

    def hear(call: Any) -> bool:
        nonlocal raised
        try:
            call()
        except StorageError as error:
            failures.extend([str(error), *getattr(error, "__notes__", [])])
            raised += 1
            return False
        return True

    store.well = False
    step = 0
    for k in range(1, 31):
        step = max(1, step - 3) if chance.random() < 0.05 else step + 1
        force = chance.random() < 0.15 or step in values
        value = 1000 * step + k
        host = state(value)
        values.setdefault(step, set()).add(value)
        calls += 1
        hear(
            lambda host=host, step=step, force=force: ckpt.save(
                step,
                host,
                force=force,
                metrics={"loss": chance.random()},
                lazy=chance.random() < 0.5,
            )
        )
        ckpt.wait_staged()
        host["b"][:] = -1
        if chance.random() < 0.3 and hear(ckpt.wait):
            there = ckpt.steps()
            assert there or not acknowledged
            acknowledged = set(there)
        if good:
            assert ckpt.steps()
        good = good or len(ckpt.steps())
        assert ckpt._pool.peak_bytes <= options.memory_budget_bytes
    hear(ckpt.wait)
    assert ckpt._saves._tools.in_flight.count == 0
    assert ckpt._saves._tools.retention._coming == {}
    assert ckpt._pool._held == len(ckpt._pool._free) * ckpt._pool.block_bytes
    dropped = ckpt.dropped
    store.well = True
    ckpt.close()

    journal = parse_journal(read_file(inner, f"{RUN}/{JOURNAL_NAME}", 1 << 20, RUN))
    count = {
        kind: sum(r.kind == kind for r in journal.records)
        for kind in ("save", "durable", "dropped", "failed")
    }
    assert count["dropped"] == dropped
    if isinstance(keep, policy.KeepAll) or options.in_flight == 1:
        assert dropped == 0
    assert bool(count["failed"]) <= bool(raised)
    assert count["save"] <= calls
    assert count["durable"] + dropped + count["failed"] >= count["save"]

    for left in (inner.kill(), inner.crash()):
        with Checkpointer(RUN, options=options, world=world_of(left), keep_last=1) as after:
            steps = after.steps()
            assert steps or not good
            for there in steps:
                found = after.restore(step=there)
                value = int(found["k"])
                assert value in values[there]
                assert (np.asarray(found["a"]) == value).all()
                assert (np.asarray(found["b"]) == value).all()
            must = [s for s in acknowledged if policy.must_keep(keep, [StepInfo(s, time_of(0))], 0)]
            if not isinstance(keep, policy.KeepBest):
                assert set(must) <= set(steps)
            after.save(1000, state(1000))
            after.wait()
        assert set(left.list_dir(RUN)) == {"1000", JOURNAL_NAME}
    with contextlib.suppress(JaxckptError):
        ckpt.close()
