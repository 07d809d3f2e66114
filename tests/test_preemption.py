"""A real SIGTERM in a real process: the newest state is durable, and the process ends as asked."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import steps_in

from jaxckpt import Checkpointer

pytestmark = pytest.mark.timeout(60)

LOOP = """
import os, signal, sys, threading, time, warnings
import numpy as np
import jaxckpt
from jaxckpt.io.local import LocalWriter
run = sys.argv[1]
def state(k):
    return {"w": np.full(3000, k), "k": k}
def term():
    os.kill(os.getpid(), signal.SIGTERM)
def hold():
    gate, write = threading.Event(), LocalWriter.write_at
    def held(self, offset, data):
        gate.wait(20)
        write(self, offset, data)
    LocalWriter.write_at = held
    return gate
"""


def run_loop(run: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOOP + code, str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def check(run: Path, steps: list[int]) -> None:
    """These steps and nothing else, each as it was saved."""
    with Checkpointer(run, journal=False) as ckpt:
        assert ckpt.steps() == steps
        for step in steps:
            found = ckpt.restore(step=step)
            assert found["k"] == step
            assert (found["w"] == step).all()
    assert steps_in(run) == sorted(str(s) for s in steps)


def test_the_newest_state_is_durable_before_the_loop_is_told_to_stop(tmp_path: Path) -> None:
    """Not due at its step, others in flight, and no wait of the loop's own."""
    done = run_loop(
        tmp_path / "run",
        """
ckpt = jaxckpt.Checkpointer(run, save_every=5)
assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
for k in range(1, 100):
    if k == 17:
        term()
    saved = ckpt.save(k, state(k), lazy=True)
    assert saved == (k % 5 == 0 or k == 17), k
    assert ckpt.should_stop == (k == 17)
    if ckpt.should_stop:
        break
assert ckpt.latest_step() == 17
os._exit(7)  # as a kill would; what still waits is written by close()
""",
    )
    assert (done.returncode, done.stderr) == (7, "")
    with Checkpointer(tmp_path / "run", journal=False) as ckpt:
        steps = ckpt.steps()
    assert steps[-1] == 17
    assert set(steps) <= {5, 10, 15, 17}
    check(tmp_path / "run", steps)


def test_a_storage_that_is_too_slow_is_given_up_in_time(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
ckpt = jaxckpt.Checkpointer(run, grace_secs=2.0)
ckpt.save(1, state(1)); ckpt.wait()
gate = hold()
ckpt.save(2, state(2))
term()
began = time.monotonic()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ckpt.save(3, state(3))
assert time.monotonic() - began < 10
assert ckpt.should_stop
told, = [w for w in caught if w.category is jaxckpt.PreemptedWarning]
text = str(told.message)
assert "step 3 of" in text and "within the 2 s" in text and "durable step is 1" in text, text
assert ckpt.steps() == [1]
gate.set()
ckpt.close()
sys.exit(3)
""",
    )
    assert (done.returncode, done.stderr) == (3, "")
    check(tmp_path / "run", [1])


def test_a_second_signal_ends_the_process(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
ckpt = jaxckpt.Checkpointer(run)
ckpt.save(1, state(1)); ckpt.wait()
term()
print("lives", flush=True)
term()
print("lives too", flush=True)
""",
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == "lives\n"
    check(tmp_path / "run", [1])


def test_a_loop_that_goes_on_ends_by_the_signal_at_its_next_save(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
ckpt = jaxckpt.Checkpointer(run, save_every=10)
term()
for k in range(1, 100):
    ckpt.save(k, state(k))
    print(k, flush=True)
""",
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == "1\n"
    check(tmp_path / "run", [1])


def test_a_handler_of_the_programs_own_is_called_and_kept(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
heard = []
own = lambda number, frame: heard.append(number)
signal.signal(signal.SIGTERM, own)
with jaxckpt.Checkpointer(run) as ckpt:
    assert signal.getsignal(signal.SIGTERM) is not own
    term()
    ckpt.save(1, state(1))
    assert ckpt.should_stop and heard == [15]
    for k in (2, 3):  # whoever handles the signal may go on
        ckpt.save(k, state(k))
    assert ckpt.should_stop
assert signal.getsignal(signal.SIGTERM) is own
term()
assert heard == [15, 15]
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    check(tmp_path / "run", [1, 2, 3])


@pytest.mark.parametrize(
    "left",
    [
        "ckpt.close()",
        "del ckpt",
        "t = threading.Thread(target=ckpt.close); t.start(); t.join()",
    ],
)
def test_without_a_loop_the_signal_has_its_usual_effect(tmp_path: Path, left: str) -> None:
    done = run_loop(
        tmp_path / "run",
        f"""
ckpt = jaxckpt.Checkpointer(run)
ckpt.save(1, state(1)); ckpt.wait()
{left}
term()
print("lives")
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")
    check(tmp_path / "run", [1])


def test_signals_are_left_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Checkpointer(tmp_path / "a", grace_secs=None):
        assert signal.getsignal(signal.SIGTERM) is before
    with Checkpointer(tmp_path / "b"):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_loops_of_one_process_hear_the_same_signal(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = Checkpointer(tmp_path / "a"), Checkpointer(tmp_path / "b", save_every=100)
    signal.raise_signal(signal.SIGTERM)
    for ckpt in (first, second):
        assert not ckpt.should_stop
        assert ckpt.save(1, {"k": 1})
        assert ckpt.should_stop
        ckpt.close()
        assert ckpt.steps() == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_on_another_thread_no_handler_is_set_and_all_else_works(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[Any] = []

    def work() -> None:
        with Checkpointer(tmp_path / "run") as ckpt:
            found.append(signal.getsignal(signal.SIGTERM))
            ckpt.save(1, {"k": 1})
        found.append(ckpt.steps())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, [1]]


# -- the interpreter's end -------------------------------------------------------------------------


def test_two_in_flight_are_written_before_the_interpreter_ends(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
gate = hold()
ckpt = jaxckpt.Checkpointer(run)
ckpt.save(1, state(1)); ckpt.save(2, state(2), lazy=True)
threading.Timer(0.5, gate.set).start()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    check(tmp_path / "run", [1, 2])


def test_at_the_end_too_an_older_snapshot_goes_for_a_newer_one(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
gate = hold()
ckpt = jaxckpt.Checkpointer(run, keep_last=1, options=jaxckpt.Options(in_flight=3))
for k in (1, 2, 3):
    ckpt.save(k, state(k))
    while not any(n.startswith(".jaxckpt-tmp-1") for n in os.listdir(run)):
        time.sleep(0.01)
threading.Timer(0.5, gate.set).start()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    check(tmp_path / "run", [3])


def test_a_save_that_fails_at_the_end_is_told_and_the_other_is_written(tmp_path: Path) -> None:
    done = run_loop(
        tmp_path / "run",
        """
gate, write = threading.Event(), LocalWriter.write_at
def bad(self, offset, data):
    gate.wait(20)
    if "-tmp-1-" in self._path:
        raise OSError(5, "Input/output error")
    write(self, offset, data)
LocalWriter.write_at = bad
ckpt = jaxckpt.Checkpointer(run)
ckpt.save(1, state(1)); ckpt.save(2, state(2))
gate.set()
""",
    )
    assert done.returncode == 0
    assert "failed and nobody waited for it" in done.stderr
    assert "Input/output error" in done.stderr
    check(tmp_path / "run", [2])


def test_a_notice_after_the_last_save_takes_effect_at_the_end(tmp_path: Path) -> None:
    code = """
import signal, sys
import jaxckpt
heard = len(sys.argv) > 2
with jaxckpt.Checkpointer(sys.argv[1]) as ckpt:
    ckpt.save(1, {"k": 1})
    signal.raise_signal(signal.SIGTERM)
    if heard:
        raise RuntimeError("the loop's own")
print("still there")
"""
    run = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    done = subprocess.run([*run, "x"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "StepExistsError" in done.stderr or "the loop's own" in done.stderr
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.steps() == [1]
