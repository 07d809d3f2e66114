"""The Coordinator of the running job, over jax's coordination service.

The service is what ``jax.distributed.initialize`` starts; it carries small values between the
processes and aborts the job when one of them dies (its heartbeat timeout, 100 s by default).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax._src import distributed

from jaxckpt._types import Processes
from jaxckpt.errors import UnsupportedTopologyError
from jaxckpt.io.coordinator import Coordinator


def default_coordinator() -> Coordinator:
    """The Coordinator of the running job; the same one on every call.

    Raises:
        UnsupportedTopologyError: there are several processes, but no coordination service.
    """
    if jax.process_count() == 1:
        return Coordinator()
    return _of_job(jax.process_index(), jax.process_count())


@functools.cache
def _of_job(process_index: int, process_count: int) -> Coordinator:
    client = distributed.global_state.client
    if client is None:
        raise UnsupportedTopologyError(
            f"this job has {process_count} processes, but jax.distributed is not initialised: call "
            "jax.distributed.initialize() at the start of every process."
        )
    return Coordinator(Processes(process_index, process_count), ServiceKeys(client))


class ServiceKeys:
    """`KeyValues` in jax's coordination service.

    Args:
        client: jax's, of the type ``DistributedRuntimeClient``.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: bytes) -> bool:
        """Sets a key for good; False if it is set already."""
        try:
            self._client.key_value_set_bytes(key, value)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def replace(self, key: str, value: bytes) -> None:
        """Sets a key, also anew."""
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, wait_secs: float) -> bytes | None:
        """The value of a key; waits for it so long at most."""
        try:
            if wait_secs <= 0:
                return self._client.key_value_try_get_bytes(key)
            return self._client.blocking_key_value_get_bytes(key, max(1, int(wait_secs * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error) or "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def delete(self, prefix: str) -> None:
        """Removes all keys that begin with ``prefix`` and a slash."""
        self._client.key_value_delete(prefix + "/")


def preempted_together(call: int) -> bool:
    """Whether jax's service tells all processes to save and stop at this call.

    True for one number, the same on every process; every process must ask with 1, 2, 3 and so on.
    False where the service is off (``jax_enable_preemption_service``).
    """
    manager = distributed.global_state.preemption_sync_manager
    return manager is not None and bool(manager.reached_sync_point(call))


def device_count() -> int:
    """How many devices the job has."""
    return jax.device_count()
