"""Real jobs: what several processes save together comes back, on any mesh and job size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs import run_job
from scenarios.state import assert_state, mesh_of, state_of, target_of

import jaxckpt

SMALL = {"chunk_bytes": 64 << 10, "data_file_bytes": 1 << 20}
BUCKETS = {"gather_bytes": 1 << 20}


def case(mesh: list[Any], specs: list[Any], to: list[Any], to_specs: list[Any], **options: Any):
    return {"mesh": mesh, "specs": specs, "to": to, "to_specs": to_specs, **options}


def direct(**more: Any) -> dict[str, Any]:
    return {"complete": "direct", **more}


def allgather(**more: Any) -> dict[str, Any]:
    return {"complete": "allgather", **more}


def broadcast(**more: Any) -> dict[str, Any]:
    return {"complete": "broadcast", **more}


TWO = [
    case([[4], "x"], [["x"], []], [[2, 2], "ab", 1], [["a", "b"], [], ["b"]]),
    case([[4], "x", 2], [[None, "x"]], [[4], "y"], [[]], restore=allgather()),
    case([[4], "x"], [[]], [[4], "y", 3], [[]], restore=direct()),
    case([[2, 2], "ab"], [["a"], ["b"], []], [[2, 2], "cd"], [["d"]], restore=broadcast()),
    case([[2, 2], "ab"], [[["a", "b"]]], [[4], "x", 5], [[None, "x"]], restore=allgather()),
    case([[4], "x"], [[]], [[4], "x"], [[]], save=SMALL, restore=allgather(**BUCKETS)),
    case([[4], "x"], [["x"]], [[4], "x"], [[]], save=SMALL, restore=broadcast(**BUCKETS)),
    case([[4], "x"], [[]], [[4], "x"], [[]], save={"compression": "zstd"}, restore=allgather()),
    case(
        [[2, 2], "ab"],
        [["a"], []],
        [[2, 2], "ab", 1],
        [[], ["b"]],
        save={"compression": "zstd", **SMALL},
        restore=broadcast(check_gathered=False),
    ),
    case([[4], "x"], [["x"], []], [[4], "x"], [[]], save={"checksum": False}, restore=allgather()),
    case([[4], "x"], [[]], [[4], "x"], [[]], restore=allgather(check_gathered=False, **BUCKETS)),
    # A part of the devices of each.
    case([[2], "x", 6], [["x"], []], [[2], "x", 4], [["x"], []], restore=allgather()),
]
FOUR = [
    case([[8], "x"], [["x"], []], [[2, 4], "ab", 1], [["a", "b"], [], ["b"]]),
    case([[2, 4], "ab", 2], [["a"], ["b"], []], [[8], "x"], [[]], restore=allgather(**BUCKETS)),
    case([[4, 2], "ab"], [["b", "a"]], [[2, 2, 2], "abc", 3], [["c"], ["a"]], restore=allgather()),
    case([[8], "x"], [[]], [[4, 2], "ab"], [["a"], ["b"]], save=SMALL, restore=direct()),
    case(
        [[2, 2, 2], "abc"],
        [[["a", "c"], "b"]],
        [[8], "x", 4],
        [[]],
        save=SMALL,
        restore=broadcast(**BUCKETS),
    ),
    case(
        [[8], "x"],
        [[]],
        [[2, 4], "ab"],
        [["a"], [None, "b"]],
        save={"compression": "zstd"},
        restore=allgather(),
    ),
    # Six of eight devices: one process has none of them, or two have one.
    case([[6], "x"], [[], ["x"]], [[6], "x", 1], [[], ["x"]], restore=allgather()),
    case([[6], "x", 2], [[], ["x"]], [[3, 2], "ab"], [["b"], []], restore=broadcast()),
]


@pytest.mark.parametrize(("processes", "cases"), [(2, TWO), (4, FOUR)])
def test_every_bit_comes_back_on_another_mesh(
    tmp_path: Path, processes: int, cases: list[Any]
) -> None:
    run_job("round_trips.grid", processes, directory=tmp_path, cases=cases)


def test_casts_parts_and_no_target_in_a_job(tmp_path: Path) -> None:
    run_job("round_trips.lenient", 2, directory=tmp_path)


def test_what_four_processes_saved_opens_in_two_and_in_one(tmp_path: Path) -> None:
    path = tmp_path / "c"
    specs = [["x"], [], [None, "x"]]
    run_job("round_trips.save", 4, path=path, seed=5, mesh=[[8], "x", 1], specs=specs)
    run_job(
        "round_trips.restore",
        2,
        path=path,
        seed=5,
        mesh=[[2, 2], "ab"],
        specs=[["a"], ["b"], []],
        complete=["allgather", "direct", "broadcast"],
    )
    target = target_of(mesh_of([4, 2], "ab"), [["b"], [], ["a"]])
    assert_state(5, jaxckpt.restore(path, target))


def test_what_one_process_saved_opens_in_four(tmp_path: Path) -> None:
    path = tmp_path / "c"
    jaxckpt.save(path, state_of(6, mesh_of([4, 2], "ab"), [["b"], [], ["a", "b"]]))
    run_job(
        "round_trips.restore",
        4,
        path=path,
        seed=6,
        mesh=[[8], "x", 3],
        specs=[[], ["x"]],
        complete=["allgather", "direct", "broadcast"],
    )


@pytest.mark.parametrize("processes", [2, 4])
def test_auto_tries_both_ways_and_goes_either(tmp_path: Path, processes: int) -> None:
    taken = run_job("round_trips.trial", processes, directory=tmp_path)
    assert taken[0][:2] == ["direct", "allgather"]  # the primary chooses for all
    assert taken[0][2] in ("direct", "allgather")
    assert all(others == [] for others in taken[1:])
