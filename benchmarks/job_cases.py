"""What is measured in a job of several processes: the ways of a restore, and orbax's two."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import RESTORE, SAVE

DIRECT, ALLGATHER, BROADCAST, AUTO = "direct", "allgather", "broadcast", "auto"
UNCHECKED = "allgather-unchecked"
ORBAX, ORBAX_BROADCAST = "orbax", "orbax-broadcast"
WAYS = (DIRECT, ALLGATHER, BROADCAST)
"""The ways that can be forced."""
OURS = (AUTO, *WAYS, UNCHECKED)

SLOW_REPLICATED, SLOW_SHARDED, DISK = "slow, R = 4", "slow, R = 1", "disk, R = 4"
"""States of timed cases: where they are read from and how many processes need each byte."""


@dataclass(frozen=True)
class Named:
    """How a case is called in tables, and what a reader needs to repeat it."""

    label: str
    settings: str


CASES = {
    AUTO: Named("jaxckpt", 'jaxckpt.restore: defaults, complete="auto"'),
    DIRECT: Named("jaxckpt, direct", 'complete="direct"'),
    ALLGATHER: Named("jaxckpt, allgather", 'complete="allgather"'),
    BROADCAST: Named("jaxckpt, broadcast", 'complete="broadcast"'),
    UNCHECKED: Named("jaxckpt, unchecked", 'complete="allgather", check_gathered=False'),
    ORBAX: Named("orbax", "StandardCheckpointer(), wait_until_finished()"),
    ORBAX_BROADCAST: Named(
        "orbax, load + broadcast",
        "PyTreeCheckpointHandler with SingleReplicaArrayHandler(replica_axis_index=0, "
        "primary_replica_id=0); restores what orbax's default saved",
    ),
}


@dataclass(frozen=True)
class Section:
    """A timed section of a part."""

    state: str
    operation: str
    case: str


PARTS: dict[str, tuple[Section, ...]] = {
    "slow": (
        *(Section(SLOW_REPLICATED, RESTORE, case) for case in (AUTO, *WAYS)),
        *(Section(SLOW_SHARDED, RESTORE, case) for case in (AUTO, DIRECT, ALLGATHER)),
    ),
    "disk": (
        *(Section(DISK, RESTORE, case) for case in (*OURS, ORBAX, ORBAX_BROADCAST)),
        *(Section(DISK, SAVE, case) for case in (AUTO, ORBAX)),
    ),
}
"""The timed parts by name."""


def our_options(case: str) -> Any:
    """jaxckpt's options of a case."""
    import jaxckpt

    if case == UNCHECKED:
        return jaxckpt.Options(complete=ALLGATHER, check_gathered=False)
    return jaxckpt.Options(complete=case)


class Orbax:
    """Orbax as it comes, and reading in one process that hands on to the others.

    Args:
        target: what is restored.
    """

    def __init__(self, target: dict[str, Any]) -> None:
        import jax
        import orbax.checkpoint as ocp
        from absl import logging

        logging.set_verbosity(logging.ERROR)
        self._jax, self._ocp, self._target = jax, ocp, target
        self._plain = ocp.StandardCheckpointer()
        handler = ocp.type_handlers.SingleReplicaArrayHandler(
            replica_axis_index=0, primary_replica_id=0
        )
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, handler))
        self._single = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))

    def save(self, path: str, arrays: dict[str, Any]) -> None:
        """Returns when it is finished, which is not durable yet."""
        self._plain.save(os.path.abspath(path), arrays)
        self._plain.wait_until_finished()

    def restore(self, path: str) -> Any:
        """Every process reads all that it needs."""
        return self._plain.restore(os.path.abspath(path), self._target)

    def restore_single(self, path: str) -> Any:
        """The first process reads."""
        ocp = self._ocp
        places = self._jax.tree.map(
            lambda leaf: ocp.type_handlers.SingleReplicaArrayRestoreArgs(
                sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
            ),
            self._target,
        )
        args = ocp.args.PyTreeRestore(self._target, restore_args=places)
        return self._single.restore(os.path.abspath(path), args=args)
