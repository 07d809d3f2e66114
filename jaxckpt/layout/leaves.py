"""What each leaf of a state is, and the refusal of those that can not be saved."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxckpt._types import LeafKind, Processes
from jaxckpt.errors import UnsupportedLeafError
from jaxckpt.format.dtypes import DTYPES, dtype_name
from jaxckpt.format.limits import MAX_NDIM
from jaxckpt.format.values import value_dtype, value_text
from jaxckpt.layout.flatten import EmptyNode, Path, path_text
from jaxckpt.layout.partition import Partition, host_partition
from jaxckpt.layout.shardings import partition_of

_SHOWN = 160
_MAX_INT_BITS = 13_000  # under 4,000 decimal digits
_VALUE_KINDS: dict[type, LeafKind] = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
}


@dataclass(frozen=True, slots=True)
class Described:
    """A leaf of a state, classified.

    Attributes:
        kind: see ``LeafKind``.
        shape: in the tree.
        source: the array whose bytes are stored (key data for ``prng``), None if there is none;
            in host memory where the partition says so.
        dtype: the dtype's name of ``source``.
        partition: where the bytes of ``source`` lie; None if there is none.
        impl: the PRNG implementation.
        value: the exact text of a Python value.
        sharding: orbax's description of the sharding, where it has one.
    """

    kind: LeafKind
    shape: tuple[int, ...] = ()
    source: Any = None
    dtype: str = ""
    partition: Partition | None = None
    impl: str = ""
    value: str = ""
    sharding: str | None = None


def describe_leaf(path: Path, x: Any, processes: Processes) -> Described:
    """Classifies one leaf.

    In a job of several processes an array that lies on one process's own devices alone is what
    every process has a copy of; it is saved as a host value is, by process 0.

    Raises:
        UnsupportedLeafError: it can not be saved; the error says why and what to do.
    """
    if x is None:
        return Described("none")
    if isinstance(x, EmptyNode):
        return Described("empty", value=x.kind)
    if isinstance(x, jax.Array):
        return _describe_jax(path, x, processes)
    if isinstance(x, np.ndarray | np.generic):
        return _describe_numpy(path, x)
    kind = _VALUE_KINDS.get(type(x))
    if kind is None:
        raise UnsupportedLeafError(
            path_text(path),
            f"it has type {type(x).__module__}.{type(x).__qualname__}",
            "Convert it to an array, a Python number, a string or None, or register its type as a "
            "pytree.",
        )
    text = _text(path, x)
    name = value_dtype(kind, text)
    # The sidecar holds the value; the array is a copy for readers that know no sidecar.
    return Described(kind, (), np.array(x, name) if name else None, name, value=text)


def _describe_jax(path: Path, x: jax.Array, processes: Processes) -> Described:
    if isinstance(x, jax.core.Tracer):
        raise UnsupportedLeafError(
            path_text(path), "it is a tracer", "Save outside of jit, grad and vmap."
        )
    if x.is_deleted():
        raise UnsupportedLeafError(
            path_text(path),
            "its buffer was deleted or donated to a jitted function",
            "Save the value that the function returned.",
        )
    one = processes.count > 1 and len({processes.of(d) for d in x.sharding.device_set}) == 1
    sharding = None if one else sharding_text(x.sharding)
    extended = not isinstance(x.dtype, np.dtype)  # pyright: ignore[reportUnnecessaryIsInstance]
    if extended and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(x)
        impl = str(jax.random.key_impl(x))
        name = data.dtype.name
        source, part = _placed(data, processes)
        return Described("prng", x.shape, source, name, part, impl, "", sharding)
    _check_array(path, x.dtype, x.ndim)
    source, part = _placed(x, processes)
    return Described("jax", x.shape, source, dtype_name(x.dtype), part, "", "", sharding)


def _placed(x: jax.Array, processes: Processes) -> tuple[Any, Partition]:
    if processes.count == 1:
        return x, partition_of(x.sharding, x.shape, processes.of)
    holders = {processes.of(d) for d in x.sharding.device_set}
    if holders == {processes.index}:
        return np.asarray(x), host_partition(x.shape)
    if len(holders) == 1:
        return x, host_partition(x.shape, holders.pop())
    return x, partition_of(x.sharding, x.shape, processes.of)


def _describe_numpy(path: Path, x: np.ndarray | np.generic) -> Described:
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedLeafError(
            path_text(path), "it is a masked array", "Save its data and its mask."
        )
    _check_array(path, x.dtype, x.ndim)
    kind: LeafKind = "numpy" if isinstance(x, np.ndarray) else "npscalar"
    array = np.asarray(x)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return Described(kind, array.shape, array, array.dtype.name, host_partition(array.shape))


def _check_array(path: Path, dtype: np.dtype, ndim: int) -> None:
    if ndim > MAX_NDIM:
        raise UnsupportedLeafError(
            path_text(path), f"it has {ndim} axes, allowed are {MAX_NDIM}", "Reshape it."
        )
    known = DTYPES.get(dtype_name(dtype))
    if known is None or known.newbyteorder("=") != dtype.newbyteorder("="):
        raise UnsupportedLeafError(
            path_text(path),
            f"it has dtype {dtype}",
            "Convert it to a number type; view datetime64 as int64, encode strings as uint8.",
        )


def _text(path: Path, x: Any) -> str:
    if type(x) is int and x.bit_length() > _MAX_INT_BITS:
        raise UnsupportedLeafError(
            path_text(path), "the int has too many digits", "Save it as an array or a string."
        )
    text = value_text(x)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedLeafError(
            path_text(path), "the string is not valid Unicode", "Save its bytes as uint8."
        ) from error
    return text


def sharding_text(sharding: jax.sharding.Sharding) -> str | None:
    """Orbax's JSON text for a sharding; None for kinds that it has no form for."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return _named_text(sharding)
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        device = next(iter(sharding.device_set))
        return json.dumps({"sharding_type": "SingleDeviceSharding", "device_str": str(device)})
    return None


@functools.lru_cache(maxsize=1024)
def short_text(text: str) -> str:
    """A long text of a sharding as its beginning and a digest: it is compared, and shown."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}… #{hashlib.sha256(text.encode()).hexdigest()[:16]}"


_named_cache: dict[Any, str | None] = {}


def _named_text(sharding: jax.sharding.NamedSharding) -> str | None:
    cached = _named_cache.get(sharding)
    if cached is not None:
        return cached
    mesh = sharding.mesh
    if not isinstance(mesh, jax.sharding.Mesh):
        return None
    spec: list[Any] = []
    for axis in sharding.spec:
        if axis is None or isinstance(axis, str):
            spec.append(axis)
        elif isinstance(axis, tuple):
            spec.append([str(a) for a in axis])
        else:
            return None
    ids = np.vectorize(lambda d: d.id, otypes=[object])(mesh.devices).tolist()

    def with_ids(x: Any) -> Any:
        return [with_ids(y) for y in x] if isinstance(x, list) else {"id": x}

    doc: dict[str, Any] = {
        "sharding_type": "NamedSharding",
        "shape": list(mesh.devices.shape),
        "axis_names": list(map(str, mesh.axis_names)),
        "axis_types": [f"AxisType.{t.name}" for t in mesh.axis_types],
        "partition_spec": spec,
        "device_mesh": {"mesh": with_ids(ids)},
    }
    if len(_named_cache) > 1024:
        _named_cache.clear()
    text = _named_cache[sharding] = json.dumps(doc)
    return text
