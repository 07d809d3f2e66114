"""Which Coordinator this job needs, asked of jax."""

from __future__ import annotations

import jax

from jaxckpt.errors import UnsupportedTopologyError
from jaxckpt.io.coordinator import Coordinator, SingleProcess


def default_coordinator() -> Coordinator:
    """The Coordinator of the running job.

    Raises:
        UnsupportedTopologyError: the job has several processes.
    """
    if jax.process_count() > 1:
        raise UnsupportedTopologyError(
            f"this job has {jax.process_count()} processes; this version of jaxckpt saves and "
            "restores in jobs of one process with any number of devices. Use a newer version."
        )
    return SingleProcess()
