"""`jaxckpt.report`: what it reads, what it refuses, and that it needs nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxckpt
from jaxckpt.errors import CheckpointNotFoundError, NotACheckpointError, StorageError
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.world import local_world
from jaxckpt.recording import Recorder


def record(run: Path, steps: int = 3) -> None:
    recorder = Recorder(local_world(Coordinator()), str(run))
    recorder.start(processes=1, devices=8)
    recorder.begins(0)
    for step in range(1, steps + 1):
        recorder.step(step)
    recorder.note("save", step=steps, stall=0.0, bytes=5)
    recorder.close()


def test_a_run_is_read_while_it_goes_on(tmp_path: Path) -> None:
    recorder = Recorder(local_world(Coordinator()), str(tmp_path))
    recorder.start(processes=1, devices=8)
    recorder.begins(0)
    recorder.step(1)
    report = jaxckpt.report(tmp_path)
    assert (report.steps, report.devices, report.sessions) == (1, 8, 1)
    assert report.version == jaxckpt.__version__
    recorder.step(2)
    recorder.flush()
    assert jaxckpt.report(tmp_path).steps == 2
    recorder.close()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint at"):
        jaxckpt.report(tmp_path / "none")
    with pytest.raises(CheckpointNotFoundError, match=r"has no journal\.jsonl: give the directory"):
        jaxckpt.report(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(NotACheckpointError, match="it is a file"):
        jaxckpt.report(file)
    (tmp_path / "journal.jsonl").symlink_to(file)
    with pytest.raises(StorageError, match=r"open failed on .*journal\.jsonl"):
        jaxckpt.report(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    with (tmp_path / "journal.jsonl").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(NotACheckpointError, match="allowed are 67108864"):
        jaxckpt.report(tmp_path)


def test_orbax_lists_and_restores_a_run_with_a_journal(tmp_path: Path) -> None:
    state = {"w": np.arange(5.0)}
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(3, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    record(tmp_path)
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.all_steps() == [3]
        back = manager.restore(3, args=ocp.args.StandardRestore(state))
        assert np.array_equal(back["w"], state["w"])
        manager.save(4, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        assert manager.all_steps() == [4]
    with jaxckpt.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.steps() == [4]
    assert jaxckpt.report(tmp_path).steps == 3


def test_a_report_needs_neither_jax_nor_orbax_nor_matplotlib(tmp_path: Path) -> None:
    record(tmp_path)
    code = (
        "import sys, jaxckpt\n"
        "text = str(jaxckpt.report(sys.argv[1]))\n"
        "assert 'ETTR' in text, text\n"
        "heavy = {'jax', 'jaxlib', 'orbax', 'flax', 'tensorstore', 'matplotlib', 'tensorboard',"
        " 'numpy.random'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
