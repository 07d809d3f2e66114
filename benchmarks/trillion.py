"""A trillion parameters with Adam in mixed precision, on devices that need not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from jaxckpt.layout.abstract_mesh import AxisSpec, DeviceMesh, device_mesh, mesh_partition
from jaxckpt.layout.partition import Partition
from jaxckpt.layout.save_plan import ArrayLeaf

LAYERS, WIDTH, INNER, VOCABULARY = 128, 24576, 86016, 131072
DEVICES_PER_PROCESS = 8
DTYPES = ("bfloat16", "float32", "float32", "float32")
"""Parameters, their master copy and the two moments."""
MESHES = {3072: (6, 64, 8), 12288: (6, 64, 32), 49152: (6, 64, 128), 131072: (8, 64, 256)}
"""Lengths of the axes data, pipe and tensor, by number of devices."""

_Spec = tuple[AxisSpec, ...]
_COLUMNS: _Spec = (None, "tensor")
_ROWS: _Spec = ("tensor", None)
_LAYER: tuple[tuple[tuple[int, ...], _Spec], ...] = (
    ((WIDTH, WIDTH), _COLUMNS),
    ((WIDTH, WIDTH // 8), _COLUMNS),
    ((WIDTH, WIDTH // 8), _COLUMNS),
    ((WIDTH, WIDTH), _ROWS),
    ((WIDTH, INNER), _COLUMNS),
    ((WIDTH, INNER), _COLUMNS),
    ((INNER, WIDTH), _ROWS),
    ((WIDTH,), (None,)),
    ((WIDTH,), (None,)),
    ((WIDTH // 128,), (None,)),
    ((WIDTH // 128,), (None,)),
    ((2, 128), (None, None)),
)


def mesh_of(devices: int) -> DeviceMesh:
    """The whole mesh."""
    axes = dict(zip(("data", "pipe", "tensor"), MESHES[devices], strict=True))
    return device_mesh(axes, DEVICES_PER_PROCESS)


def stacked(mesh: DeviceMesh) -> list[ArrayLeaf]:
    """All layers of a tensor in one array, cut into stages along the first axis."""

    def arrays() -> Iterator[Partition]:
        for shape, spec in _LAYER:
            yield mesh_partition(mesh, ("pipe", *spec), (LAYERS, *shape))
        yield mesh_partition(mesh, _ROWS, (VOCABULARY, WIDTH))

    return _numbered((part, dtype) for dtype in DTYPES for part in arrays())


def by_stage(mesh: DeviceMesh) -> list[ArrayLeaf]:
    """An array for each layer, on the devices of its stage; optimizer states are cut once more."""
    stages = mesh.axes["pipe"]
    meshes: list[DeviceMesh] = []
    for stage in range(stages):
        own = mesh.devices[:, stage]
        axes = {"data": own.shape[0], "tensor": own.shape[1]}
        meshes.append(device_mesh(axes, DEVICES_PER_PROCESS, np.ravel(own).tolist()))
    return _layers(lambda layer: meshes[layer * stages // LAYERS])


def by_layer(mesh: DeviceMesh) -> list[ArrayLeaf]:
    """An array for each layer on the whole mesh; every stage holds a copy of all."""
    return _layers(lambda _: mesh)


STATES: dict[str, Callable[[DeviceMesh], list[ArrayLeaf]]] = {
    "stacked": stacked,
    "by stage": by_stage,
    "by layer": by_layer,
}


def _layers(mesh: Callable[[int], DeviceMesh]) -> list[ArrayLeaf]:
    return _numbered(
        (mesh_partition(mesh(layer), _with_data(spec) if number else spec, shape), dtype)
        for number, dtype in enumerate(DTYPES)
        for layer in range(LAYERS)
        for shape, spec in _LAYER
    )


def _with_data(spec: _Spec) -> _Spec:
    """Cuts the other axis of a matrix over the data axis, as ZeRO does with optimizer states."""
    if "tensor" not in spec:
        return spec
    return tuple(entry or "data" for entry in spec)


def _numbered(arrays: Iterator[tuple[Partition, str]]) -> list[ArrayLeaf]:
    return [ArrayLeaf(number, part, dtype) for number, (part, dtype) in enumerate(arrays)]
