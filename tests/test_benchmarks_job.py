"""The machinery of the benchmark of jobs, at a tiny size and without a look at the clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.bars import Bar
from benchmarks.counting_store import CountingStore
from benchmarks.job_cases import ALLGATHER, AUTO, DIRECT, DISK, SLOW_REPLICATED
from benchmarks.job_launch import run_job
from benchmarks.job_results import JobResults, bars, count_of, write_json
from benchmarks.job_tables import write_markdown
from benchmarks.machine import Machine
from benchmarks.measure import Sample, summarize
from benchmarks.merge_scale import ITEM, databases_of, merge
from benchmarks.slow_store import SLICE_BYTES, SharedRate, SlowStore
from benchmarks.trillion import STATES, mesh_of
from jaxckpt.io.store import read_file, write_file
from jaxckpt.layout.save_plan import ArrayLeaf
from jaxckpt.opened import open_item

SECOND_NS = 1_000_000_000


def test_all_who_read_share_one_line(tmp_path):
    """Two readers with a file each see one rate: the slots follow one another."""
    now = [5 * SECOND_NS]
    slept = []
    readers = [
        SharedRate(str(tmp_path / "rate"), 1000.0, clock_ns=lambda: now[0], sleep=slept.append)
        for _ in range(2)
    ]
    assert readers[0].reserve(500) == 5.5 * SECOND_NS
    assert readers[1].reserve(1000) == 6.5 * SECOND_NS
    assert readers[0].reserve(500) == 7.0 * SECOND_NS
    now[0] = 100 * SECOND_NS  # time in which nobody read is not saved up
    assert readers[1].reserve(1000) == 101 * SECOND_NS
    assert readers[0].total() == readers[1].total() == 3000
    readers[0].wait(2 * SLICE_BYTES + 1)
    assert len(slept) == 3
    assert readers[1].total() == 3000 + 2 * SLICE_BYTES + 1


def test_readers_at_the_same_time_lose_no_reservation(tmp_path):
    """Each has a file of its own, as each process has: the lock is between them."""

    def reserve(_: int) -> None:
        rate = SharedRate(str(tmp_path / "rate"), 1e12)
        for _ in range(200):
            rate.reserve(7)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(reserve, range(4)))
    assert SharedRate(str(tmp_path / "rate"), 1.0).total() == 4 * 200 * 7


def test_stores_slow_down_and_count(tmp_path):
    counting = CountingStore()
    write_file(counting, str(tmp_path / "file"), b"x" * 1000)
    assert read_file(counting, str(tmp_path / "file"), 1000) == b"x" * 1000
    assert (counting.written, counting.read) == (1000, 1000)
    rate = SharedRate(str(tmp_path / "rate"), 1e12)
    assert read_file(SlowStore(rate), str(tmp_path / "file"), 1000) == b"x" * 1000
    assert rate.total() == 1000


def test_a_job_counts_its_bytes(tmp_path):
    said = []
    found = run_job("count", 2, 2, {"folder": str(tmp_path), "nbytes": 8e6}, said.append, 120)
    nbytes = found[0]["nbytes"]
    read = {
        case: count_of(2, "restore", case, nbytes, [one["restore"][case] for one in found])
        for case in found[0]["restore"]
    }
    # Of so small a state the index and what does not fill a block are several hundredths.
    assert read[ALLGATHER].ratio == pytest.approx(1, abs=0.1)
    assert read[DIRECT].ratio == pytest.approx(2, abs=0.2)
    saved = count_of(2, "save", AUTO, nbytes, [one["save"][AUTO] for one in found])
    assert saved.ratio == pytest.approx(1, abs=0.1)
    assert saved.level < 1.05
    assert len(said) == len(found[0]["restore"]) + len(found[0]["save"])


def test_results_are_written(tmp_path):
    """Bars, tables and JSON of made-up samples, and the picture where it can be drawn."""
    samples = [
        Sample(state, "restore", case, number, 0, seconds + number)
        for state in (SLOW_REPLICATED, DISK)
        for case, seconds in ((AUTO, 2.0), (ALLGATHER, 2.0), (DIRECT, 8.0))
        for number in range(3)
    ]
    moved = {"read": 1000, "written": 1000, "rchar": 0, "wchar": 0, "read_bytes": 0}
    counts = [count_of(2, "restore", ALLGATHER, 2000, [moved, moved])]
    machine = Machine("day", "none", "cpu", 2, 1.0, "kernel", "disk", [0.0], "3", {}, "commit")
    sizes = {SLOW_REPLICATED: 10, DISK: 10}
    results = JobResults(
        machine, 5e7, 2000, sizes, counts, samples, summarize(samples), cold=True, seconds=60
    )
    found = {bar.what: bar for bar in bars(results)}
    once = found["R = 2: bytes read over bytes of the state, allgather"]
    assert once == Bar(once.what, "1.00", "1.0000", met=True)
    gain = found[f"{SLOW_REPLICATED}: allgather faster than direct"]
    assert gain == Bar(gain.what, "at least 3.00x", "3.00x", met=True)
    write_json(results, str(tmp_path / "job.json"))
    write_markdown(results, str(tmp_path / "job.md"), "job.png")
    assert "MISSED" not in (tmp_path / "job.md").read_text()
    pytest.importorskip("matplotlib")
    from benchmarks.job_draw import draw

    assert draw(results, str(tmp_path / "job.png"))


def test_a_simulated_merge_is_a_whole_item():
    leaves = STATES["stacked"](mesh_of(3072))
    few = [
        ArrayLeaf(number, leaf.partition, leaf.dtype) for number, leaf in enumerate(leaves[1:12:5])
    ]
    databases = databases_of(few, 384)
    _, files = merge(databases)
    item = open_item(files, ITEM)
    assert len(item.index.keys) == databases.plan.owners.size + len(few)
    assert item.sidecar.process_count == 384
