"""Chunk shapes and the positions of the grid."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.layout.abstract_mesh import device_mesh, mesh_partition
from jaxckpt.layout.chunking import (
    choose_chunk_shape,
    fine_chunk_shape,
    grid_counts,
    grid_positions,
    positions_meeting,
    split_chunk_shape,
)
from jaxckpt.layout.partition import host_partition, whole_box


@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(10, 20))
def test_chunks_fit_the_array_and_are_small_where_that_is_possible(
    shape: list[int], log2: int
) -> None:
    whole = tuple(shape)
    chunk = choose_chunk_shape(host_partition(whole), 4, 1 << log2)
    if math.prod(whole) * 4 <= 64 << 10:
        assert chunk == whole
    count = math.prod(grid_counts(whole, chunk))
    assert count * math.prod(chunk) <= 1.01 * math.prod(whole)
    if count <= 10_000:
        positions = grid_positions(whole, chunk)
        assert positions_meeting(whole_box(whole), chunk) == positions


def test_the_default_chunk_of_a_large_matrix() -> None:
    part = host_partition((32768, 8192))
    assert choose_chunk_shape(part, 4, 64 << 20) == (2048, 8192)


def test_prime_axes_do_not_keep_an_array_in_one_chunk() -> None:
    part = host_partition((100_003, 1009))
    assert choose_chunk_shape(part, 4, 64 << 20) == (14287, 1009)


def test_without_elements_the_chunk_is_the_array() -> None:
    assert choose_chunk_shape(host_partition((0, 7, 3)), 4, 64) == (1, 7, 3)
    mesh = device_mesh({"x": 2}, 1)
    assert choose_chunk_shape(mesh_partition(mesh, ("x", "x"), (0, 8)), 4, 64) == (1, 8)


def test_pieces_of_a_region_for_each_of_its_holders() -> None:
    mesh = device_mesh({"x": 2, "y": 6}, 1)
    part = mesh_partition(mesh, ("x",), (8192, 8191))
    assert split_chunk_shape(part, 4, 64 << 20, 6) == (4096, 1366)
    assert split_chunk_shape(part, 4, 64 << 20, 4) == (1024, 8191)
    assert split_chunk_shape(part, 4, 64 << 20, 4096) is None
    assert fine_chunk_shape(part, 4, 1 << 20) == (32, 8191)
    # Never under 64 KiB: a row has half of that.
    assert fine_chunk_shape(part, 4, 1) == (4, 8191)
