"""Real jobs: each stored byte is written once and read once; nothing is compiled leaf by leaf."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job


@pytest.mark.parametrize("processes", [2, 4])
def test_bytes_are_written_once_and_read_once_in_the_job(tmp_path: Path, processes: int) -> None:
    counted = run_job("counting.bytes_moved", processes, directory=tmp_path)
    for replicas in {2, processes}:
        found = [c[str(replicas)] for c in counted]
        state = found[0]["state"]

        def ratio(what: str, found: list[dict[str, int]] = found, state: int = state) -> float:
            return sum(f[what] for f in found) / state

        assert 1.0 <= ratio("written") <= 1.02
        written = [f["written"] for f in found]
        assert max(written) * processes <= 1.05 * sum(written)
        assert 1.0 <= ratio("allgather") <= 1.02
        assert 1.0 <= ratio("broadcast") <= 1.02
        assert replicas <= ratio("direct")
        read = [f["allgather"] for f in found]
        assert max(read) * processes <= 1.15 * sum(read)


@pytest.mark.parametrize("processes", [2, 4])
def test_compilations_do_not_grow_with_the_leaves(tmp_path: Path, processes: int) -> None:
    for counts in run_job("counting.compilations", processes, directory=tmp_path):
        for way in ("allgather", "broadcast"):
            few, many = counts[f"10 {way}"], counts[f"60 {way}"]
            assert few["save 2"] == many["save 2"] == 0
            assert many["save 1"] <= few["save 1"]
            assert many["restore 1"] <= few["restore 1"]
            assert many["restore 2"] <= few["restore 2"]


def test_process_0_shows_all_bytes_that_it_writes_and_needs(tmp_path: Path) -> None:
    first, second = run_job("counting.progress", 2, directory=tmp_path)
    assert second == []
    assert [what for what, *_ in first] == ["save", "restore", "restore", "restore"]
    assert all(whole and done == total > 0 for _, done, total, whole in first)
    saved, *restored = [done for _, done, *_ in first]
    assert len(set(restored)) == 1  # the same in each way
    assert saved < 0.6 * restored[0]  # its own half
