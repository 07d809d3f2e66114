"""Eight virtual CPU devices and 64-bit types, set before jax starts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import pytest
from hypothesis import HealthCheck, settings
from jax.sharding import Mesh

from jaxckpt._options import Options
from jaxckpt.ettr.records import JOURNAL_NAME
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import Store
from jaxckpt.io.world import World

settings.register_profile(
    "ours",
    deadline=None,  # timing never decides a test
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ours")


def world_of(store: Store) -> World:
    """A world in which names and times are the same on every run."""
    numbers = itertools.count(1)
    return World(
        store,
        Coordinator(),
        wall_ns=lambda: 1_700_000_000_000_000_000 + next(numbers),
        random_bytes=lambda n: next(numbers).to_bytes(n, "big"),
    )


def steps_in(run: Path) -> list[str]:
    """All that lies in a run's directory but its journal."""
    return sorted(p.name for p in run.iterdir() if p.name != JOURNAL_NAME)


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"))


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(1)
    yield made
    made.close()


@pytest.fixture
def options() -> Options:
    return Options(memory_budget_bytes=16 << 20)


@pytest.fixture
def pool(options: Options) -> HostPool:
    return HostPool(options.memory_budget_bytes)
