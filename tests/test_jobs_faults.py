"""Real jobs in which a process dies, is slow or can not write: bounded time, nothing lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from jobs import ABORTED, KILLED, Job, run_job

OUR_ERRORS = ("PeerFailedError", "PeerMissingError", "CollectiveFailedError")
DEATHS_IN_SAVE = [
    ("planning", 1),
    ("agreed", 1),
    ("copying", 1),
    ("writing", 1),
    ("synced", 1),
    ("announced", 1),
    ("planning", 0),
    ("copying", 0),
    ("synced", 0),
    ("merging", 0),
    ("before the rename", 0),
    ("after the rename", 0),
]
DEATHS_IN_RESTORE = [
    ("before the barrier", 1),
    ("reading", 1),
    ("between buckets", 1),
    ("the last meeting", 1),
    ("matching", 0),
    ("reading", 0),
    ("between buckets", 0),
    ("the last meeting", 0),
]
AT_ONCE = 4
HEARTBEAT_SECS = 5


@pytest.mark.parametrize("deaths", [DEATHS_IN_SAVE, DEATHS_IN_RESTORE], ids=["save", "restore"])
def test_a_process_dies_and_the_job_is_started_again(tmp_path: Path, deaths: list[Any]) -> None:
    runs: dict[str, int | None] = {}
    for first in range(0, len(deaths), AT_ONCE):
        jobs: list[tuple[str, int, Job]] = []
        for number, (phase, process) in enumerate(deaths[first : first + AT_ONCE], first):
            run = tmp_path / str(number)
            runs[str(run)] = None if phase in ("announced", "after the rename") else 1
            about = {"directory": run, "phase": phase, "process": process}
            job = Job("faults.killed", 2, heartbeat_secs=HEARTBEAT_SECS, **about)
            jobs.append((phase, process, job))
        for phase, process, job in jobs:
            outcomes = job.wait(HEARTBEAT_SECS + 35)
            where = phase, process
            assert outcomes[process].code == KILLED, (*where, outcomes[process].stderr[-3000:])
            other = outcomes[1 - process]
            if other.code != ABORTED:
                assert other.code == 0, (*where, other.stderr[-3000:])
                assert other.result.get("error", OUR_ERRORS[0]) in OUR_ERRORS, (
                    *where,
                    other.result,
                )
                if phase not in ("announced", "after the rename"):
                    assert other.result.get("error"), where
    run_job("faults.resumed", 2, runs=runs)


def test_a_slow_process_is_waited_for_or_named(tmp_path: Path) -> None:
    first, second = run_job("faults.slow", 2, directory=tmp_path)
    for found in (first, second):
        assert "error" not in found["patient"], found["patient"]
        assert found["impatient"]["error"] == "PeerMissingError"
        assert "process 1 last reached 'the same everywhere'" in found["impatient"]["text"]
        assert found["impatient"]["secs"] < 8


def test_a_disk_that_one_process_can_not_write_fails_the_save_everywhere(tmp_path: Path) -> None:
    cases = [
        (1, "make_dir", "ocdbt.process_1", errno.EACCES),
        (1, "create", "ocdbt.process_1/d/data", errno.EROFS),
        (1, "write", "ocdbt.process_1/d/data", errno.ENOSPC),
        (1, "sync", "ocdbt.process_1/d/data", errno.EIO),
        (1, "create", "ocdbt.process_1/manifest.ocdbt", errno.EDQUOT),
        (0, "make_dir", ".jaxckpt-tmp-", errno.EACCES),
        (0, "write", "ocdbt.process_0/d/data", errno.ENOSPC),
        (0, "create", "_METADATA", errno.ENOSPC),
        (0, "create", "_CHECKPOINT_METADATA", errno.ENOSPC),
        (0, "rename", str(tmp_path / "run" / "2"), errno.EIO),
    ]
    results = run_job("faults.unwritable", 2, directory=tmp_path / "run", cases=cases)
    for case, found in zip(cases, zip(*results, strict=True), strict=True):
        process, _, _, number = case
        name = errno.errorcode[number]
        own, other = found[process], found[1 - process]
        assert own.get("error") == "StorageError", (case, own)
        assert name in own["text"], (case, own)
        assert other.get("error") == "PeerFailedError", (case, other)
        assert f"process {process} failed with StorageError" in other["text"], (case, other)
        assert name in other["text"], (case, other)
        assert max(f["secs"] for f in found) < 10, (case, found)
        assert own["names"] == other["names"] == ["1"], (case, own["names"])


def test_a_process_dies_while_two_snapshots_are_in_flight(tmp_path: Path) -> None:
    jobs = [
        Job(
            "faults.killed_in_flight",
            2,
            heartbeat_secs=HEARTBEAT_SECS,
            directory=tmp_path / str(process),
            process=process,
        )
        for process in (0, 1)
    ]
    for process, job in enumerate(jobs):
        outcomes = job.wait(HEARTBEAT_SECS + 35)
        assert outcomes[process].code == KILLED, outcomes[process].stderr[-3000:]
        assert outcomes[1 - process].code == ABORTED, outcomes[1 - process].stderr[-3000:]
    run_job("faults.resumed", 2, runs={str(tmp_path / str(process)): 1 for process in (0, 1)})


@pytest.mark.parametrize("process", [0, 1])
def test_the_notice_to_one_process_makes_all_save_the_same_step(
    tmp_path: Path, process: int
) -> None:
    found = run_job("faults.preempted", 2, directory=tmp_path / "run", process=process)
    assert found[0] == found[1]
    assert found[0]["step"] >= 5
    assert found[0]["steps"] == [found[0]["step"]]
