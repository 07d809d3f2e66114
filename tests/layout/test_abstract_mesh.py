"""Abstract devices are held against jax's own, on eight of the CPU."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from meshes import specs

from jaxckpt.layout.abstract_mesh import device_mesh, mesh_partition
from jaxckpt.layout.shardings import partition_of

SHAPES = [{"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 3, "c": 2}, {"a": 1}]


@settings(max_examples=200)
@given(st.data(), st.sampled_from(SHAPES), st.permutations(range(8)))
def test_the_same_as_a_named_sharding(data: Any, axes: dict[str, int], order: list[int]) -> None:
    count = math.prod(axes.values())
    devices = np.array(jax.devices())[order[:count]].reshape(tuple(axes.values()))
    mesh = device_mesh(axes, 8, order[:count])
    spec = data.draw(specs(mesh, data.draw(st.integers(0, 3))))
    shape: list[int] = []
    for entry in spec:
        own = () if entry is None else (entry,) if isinstance(entry, str) else entry
        shape.append(math.prod(axes[n] for n in own) * data.draw(st.integers(0, 3)))
    shape += data.draw(st.lists(st.integers(1, 3), max_size=1))
    sharding = NamedSharding(Mesh(devices, tuple(axes)), PartitionSpec(*spec))
    real = partition_of(sharding, tuple(shape), lambda d: d.process_index)
    made = mesh_partition(mesh, spec, tuple(shape))
    if 0 in shape:
        # The boxes of an array without elements are of no use to anybody.
        assert set(made.boxes[0].shape) >= {0}
        return
    assert made.boxes == real.boxes
    assert made.replicas == real.replicas
    assert made.holders.key == real.holders.key
    # And both are what jax says of each device.
    held = dict(zip(real.boxes, real.replicas, strict=True))
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        found = [b for b, group in held.items() if device.id in {r.device for r in group}]
        assert [
            tuple(slice(a, b) for a, b in zip(f.start, f.stop, strict=True)) for f in found
        ] == [tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, shape, strict=True))]


def test_what_does_not_fit_is_refused() -> None:
    mesh = device_mesh({"x": 4}, 1)
    with pytest.raises(ValueError, match="do not divide"):
        mesh_partition(mesh, ("x",), (6,))
    with pytest.raises(ValueError, match="more axes"):
        mesh_partition(mesh, ("x", None), (8,))
    with pytest.raises(ValueError, match="do not fill"):
        device_mesh({"x": 4}, 1, [1, 2])
