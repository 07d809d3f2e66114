"""One process of a job: joins it, runs one scenario, prints what that returned as JSON.

A scenario is named as its module here and its function. In modules whose name begins with
``plain`` jaxckpt can not be imported.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any


class _Refuse:
    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "jaxckpt":
            raise ImportError("jaxckpt is not to be had here")


def _leave(client: Any, index: int, count: int) -> None:
    """Process 0 goes last: the service, and with it all others, ends when it does."""
    client.key_value_set(f"pid/{index}", str(os.getpid()))
    client.wait_at_barrier("the end", 60_000)
    pids = [client.blocking_key_value_get(f"pid/{i}", 1000) for i in range(1, count)]
    end = time.monotonic() + 5
    while not index and any(map(_runs, pids)) and time.monotonic() < end:
        time.sleep(0.01)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    module, _, function = sys.argv[1].partition(".")
    args = json.loads(sys.argv[2])
    if module.startswith("plain"):
        sys.meta_path.insert(0, _Refuse())
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax
    from jax._src import distributed

    index, count, port, heartbeat = map(int, os.environ["JOB"].split())
    if count > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            num_processes=count,
            process_id=index,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=20,
        )
    code = 0
    try:
        result = getattr(importlib.import_module(f"scenarios.{module}"), function)(**args)
        print("RESULT", json.dumps(result), flush=True)
        if count > 1:
            _leave(distributed.global_state.client, index, count)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a normal exit waits for processes that may be dead


if __name__ == "__main__":
    main()
