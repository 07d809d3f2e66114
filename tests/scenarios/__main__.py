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
import traceback
import warnings
from typing import Any


class _Refuse:
    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "jaxckpt":
            raise ImportError("jaxckpt is not to be had here")


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
            distributed.global_state.client.wait_at_barrier("the end", 60_000)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a normal exit waits for processes that may be dead


if __name__ == "__main__":
    main()
