"""Random meshes, and the shapes of training states on them, for the tests of plans."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st

from jaxckpt.layout.abstract_mesh import AxisSpec, DeviceMesh, device_mesh, mesh_partition
from jaxckpt.layout.save_plan import ArrayLeaf, SavePlan

AXES = ("a", "b", "c", "d")
Shape = tuple[int, ...]


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    """Up to four axes; devices in any order."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4))
    per_process = draw(st.sampled_from([1, 2, 4]))
    order = list(range(math.prod(lengths)))
    if draw(st.booleans()):
        np.random.default_rng(draw(st.integers(0, 99))).shuffle(order)
    return device_mesh(dict(zip(AXES, lengths, strict=False)), per_process, order)


@st.composite
def specs(draw: st.DrawFn, mesh: DeviceMesh, ndim: int) -> list[AxisSpec]:
    """Some of the mesh's axes on some of the array's."""
    names = draw(st.permutations(list(mesh.axes)))
    spec: list[AxisSpec] = []
    for _ in range(ndim):
        take = draw(st.sampled_from([0, 0, 1, 1, 2]))
        own, names = tuple(names[:take]), names[take:]
        spec.append(None if not own else own[0] if len(own) == 1 else own)
    return spec


@st.composite
def leaves_on(draw: st.DrawFn, mesh: DeviceMesh) -> list[ArrayLeaf]:
    """Some arrays, from single elements to some hundred KiB."""
    leaves: list[ArrayLeaf] = []
    for number in range(draw(st.integers(1, 6))):
        ndim = draw(st.integers(0, 3))
        spec = draw(specs(mesh, ndim))
        shape: list[int] = []
        for entry in spec:
            own = () if entry is None else (entry,) if isinstance(entry, str) else entry
            ways = math.prod(mesh.axes[name] for name in own)
            shape.append(ways * draw(st.sampled_from([0, 1, 2, 3, 5, 7, 12, 31, 62])))
        if math.prod(shape) > 1 << 17:
            shape[-1] //= 31 if shape[-1] % 31 == 0 else 1
        dtype = draw(st.sampled_from(["int8", "bfloat16", "float32", "complex128"]))
        leaves.append(ArrayLeaf(number, mesh_partition(mesh, spec, tuple(shape)), dtype))
    return leaves


def state_on(
    mesh: DeviceMesh,
    arrays: Iterable[tuple[Shape, tuple[AxisSpec, ...]]],
    dtypes: Iterable[str] = ("float32", "float32", "float32"),
) -> list[ArrayLeaf]:
    """Parameters, and as many of each for the optimizer as there are more dtypes."""
    arrays = list(arrays)
    return [
        ArrayLeaf(number, mesh_partition(mesh, spec, shape), dtype)
        for number, (dtype, (shape, spec)) in enumerate(
            (dtype, array) for dtype in dtypes for array in arrays
        )
    ]


def level(plan: SavePlan, processes: int) -> float:
    """What the busiest process writes, against the mean."""
    return max(plan.process_bytes.values()) * processes / plan.nbytes
