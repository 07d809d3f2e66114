"""A target tree against the stored leaves: what each target leaf gets, or all that does not fit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxckpt._types import ARRAY_KINDS, LeafSpec
from jaxckpt.errors import TreeMismatchError
from jaxckpt.format.dtypes import DTYPES, dtype_name
from jaxckpt.format.values import text_value
from jaxckpt.layout.flatten import EmptyNode, Path, path_text

ResultKind = Literal["jax", "prng", "numpy", "npscalar", "value", "keep"]
_PYTHON_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
}
_WIDE_BYTES = 8  # what jax narrows without jax_enable_x64
_NUMBER_KINDS = frozenset({"bool", "int", "float", "complex"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """One leaf of the result.

    Attributes:
        kind: what to make; ``keep`` takes the target's own leaf, ``value`` the sidecar's.
        spec: the stored leaf; None for ``keep``.
        dtype: of the result's array, where it differs from the stored one after a cast.
        sharding: of a ``jax`` result, or of the key array of a ``prng`` result; None for the
            default device.
        own: the target's leaf.
        python: the Python type to make of a stored 0-d array.
    """

    kind: ResultKind
    spec: LeafSpec | None
    dtype: str = ""
    sharding: jax.sharding.Sharding | None = None
    own: Any = None
    python: type | None = None


def match_target(
    where: str,
    stored: Sequence[LeafSpec],
    target: Sequence[tuple[Path, Any]],
    *,
    cast: bool,
    allow_missing: bool,
    allow_extra: bool,
) -> list[Wanted]:
    """Decides for each target leaf, in order, what it gets.

    Raises:
        TreeMismatchError: with all mismatches of tree, type, shape and dtype.
    """
    by_name = {tuple(name for _, name in leaf.path): leaf for leaf in stored}
    problems: list[str] = []
    wanted: list[Wanted] = []
    used: set[tuple[str, ...]] = set()
    seen: set[tuple[str, ...]] = set()
    for path, own in target:
        names = tuple(name for _, name in path)
        if names in seen:
            problems.append(f"{path_text(path)}: there twice in the target, as int and as str key")
        seen.add(names)
        spec = by_name.get(names)
        nothing = own is None or isinstance(own, EmptyNode)
        if spec is None:
            if not nothing and not allow_missing:
                problems.append(f"{path_text(path)}: in the target, not in the checkpoint")
            elif isinstance(own, jax.ShapeDtypeStruct):
                problems.append(
                    f"{path_text(path)}: not in the checkpoint, and the target has no value to keep"
                )
            elif nothing and not allow_missing and not _has_below(by_name, names):
                problems.append(f"{path_text(path)}: empty in the target, not in the checkpoint")
            wanted.append(Wanted("keep", None, own=own))
            continue
        used.add(names)
        found = _match_leaf(spec, own, cast)
        if isinstance(found, str):
            problems.append(f"{path_text(path)}: {found}")
            found = Wanted("keep", None, own=own)
        wanted.append(found)
    if not allow_extra:
        problems += _extras(by_name, used, target)
    if problems:
        raise TreeMismatchError(where, problems)
    return wanted


def wanted_without_target(stored: Sequence[LeafSpec]) -> list[Wanted]:
    """What a restore without target gives: numpy arrays, values and PRNG keys."""
    kinds: dict[str, ResultKind] = {
        "jax": "numpy",
        "numpy": "numpy",
        "npscalar": "npscalar",
        "prng": "prng",
    }
    return [Wanted(kinds.get(leaf.kind, "value"), leaf, leaf.dtype) for leaf in stored]


def _has_below(by_name: dict[tuple[str, ...], LeafSpec], names: tuple[str, ...]) -> bool:
    return any(other[: len(names)] == names for other in by_name)


def _extras(
    by_name: dict[tuple[str, ...], LeafSpec],
    used: set[tuple[str, ...]],
    target: Sequence[tuple[Path, Any]],
) -> list[str]:
    # A stored empty node may be a node with children in the target; then those are reported.
    inner = {
        tuple(name for _, name in path[:i]) for path, _ in target for i in range(len(path) + 1)
    }
    return [
        f"{path_text(leaf.path)}: in the checkpoint ({_stored_text(leaf)}), not in the target"
        for names, leaf in by_name.items()
        if names not in used and not (leaf.kind in ("none", "empty") and names in inner)
    ]


def _match_leaf(spec: LeafSpec, own: Any, cast: bool) -> Wanted | str:
    """What the leaf gets, or what does not fit."""
    stored_nothing = spec.kind in ("none", "empty")
    if own is None or isinstance(own, EmptyNode):
        if stored_nothing:
            return Wanted("keep", None, own=own)
        return f"stored is {_stored_text(spec)}, the target has {_target_text(own)}"
    if stored_nothing:
        return f"stored is {_stored_text(spec)}, the target has {_target_text(own)}"
    if isinstance(own, jax.core.Tracer):
        return "the target is a tracer; restore outside of jit, grad and vmap"
    if type(own) in _PYTHON_TYPES:
        return _match_value(spec, own, cast)
    if not hasattr(own, "shape") or not hasattr(own, "dtype"):
        return f"the target has the type {type(own).__name__}; expected an array or a value"
    if jnp.issubdtype(own.dtype, jax.dtypes.prng_key):
        return _match_key(spec, own)
    return _match_array(spec, own, cast)


def _match_value(spec: LeafSpec, own: Any, cast: bool) -> Wanted | str:
    kind = _PYTHON_TYPES[type(own)]
    if spec.kind == kind:
        return Wanted("value", spec)
    number = spec.kind != "prng" and spec.dtype and spec.stored_shape == () and kind != "str"
    if number and (cast or _category(spec.dtype) == kind):
        return Wanted("npscalar", spec, spec.dtype, python=type(own))
    return f"stored is {_stored_text(spec)}, the target has {_target_text(own)}"


def _category(dtype: str) -> str:
    """The Python type that holds every number of a dtype exactly."""
    for start, kind in (("bool", "bool"), ("int", "int"), ("uint", "int"), ("complex", "complex")):
        if dtype.startswith(start):
            return kind
    return "float"


def _holds(dtype: str, spec: LeafSpec) -> bool:
    """Whether a stored Python number is exactly a number of a dtype, and of the same sort."""
    if spec.kind not in _NUMBER_KINDS or _category(dtype) != spec.kind:
        return False
    value = text_value(spec)
    try:
        with np.errstate(all="ignore"):
            return np.array(value, DTYPES[dtype]).item() == value or value != value  # noqa: PLR0124
    except OverflowError:
        return False


def _match_key(spec: LeafSpec, own: Any) -> Wanted | str:
    impl = key_impl(own.dtype)
    if spec.kind != "prng" or spec.shape != tuple(own.shape) or spec.impl != impl:
        return f"stored is {_stored_text(spec)}, the target has PRNG keys {impl}{list(own.shape)}"
    return Wanted("prng", spec, spec.dtype, getattr(own, "sharding", None))


def _match_array(spec: LeafSpec, own: Any, cast: bool) -> Wanted | str:
    name = dtype_name(np.dtype(own.dtype))
    array_like = spec.kind in ARRAY_KINDS and spec.kind != "prng"
    weak = getattr(own, "weak_type", False) and spec.kind == _category(name) == "float"
    exact = not array_like and own.shape == () and (weak or _holds(name, spec))
    if not array_like and not (spec.dtype and spec.kind != "prng" and (cast or exact)):
        return f"stored is {_stored_text(spec)}, the target has {_target_text(own)}"
    if spec.stored_shape != tuple(own.shape):
        return f"stored shape is {list(spec.stored_shape)}, the target has {list(own.shape)}"
    if spec.dtype != name and not cast and not exact:
        return f"stored dtype is {spec.dtype}, the target has {name}"
    kind: ResultKind = "jax"
    if not isinstance(own, np.ndarray | np.generic):
        narrowed = name
        if np.dtype(own.dtype).itemsize >= _WIDE_BYTES:
            narrowed = jax.dtypes.canonicalize_dtype(own.dtype).name
        if narrowed != name:
            return f"the target's dtype {name} would become {narrowed}: set jax_enable_x64"
    if isinstance(own, np.ndarray):
        kind = "numpy"
    elif isinstance(own, np.generic):
        kind = "npscalar"
    # An uncommitted array may still be moved by jax; committing it would pin what it meets.
    free = isinstance(own, jax.Array) and not own.committed
    return Wanted(kind, spec, name, None if free else getattr(own, "sharding", None))


@functools.lru_cache
def key_impl(dtype: Any) -> str:
    """The name of a key dtype's PRNG implementation, for instance ``threefry2x32``."""
    found: list[str] = []

    def ask(keys: jax.Array) -> int:
        found.append(str(jax.random.key_impl(keys)))
        return 0

    jax.eval_shape(ask, jax.ShapeDtypeStruct((), dtype))  # only arrays and tracers tell it
    return found[0]


def _stored_text(spec: LeafSpec) -> str:
    if spec.kind == "prng":
        return f"PRNG keys {spec.impl}{list(spec.shape)}"
    if spec.kind in ARRAY_KINDS:
        return f"{spec.dtype}{list(spec.shape)}"
    if spec.kind == "empty":
        return f"an empty {spec.value}"
    return "None" if spec.kind == "none" else f"a Python {spec.kind}"


def _target_text(own: Any) -> str:
    if own is None:
        return "None"
    if isinstance(own, EmptyNode):
        return f"an empty {own.kind}"
    if hasattr(own, "dtype") and hasattr(own, "shape"):
        return f"{own.dtype}{list(own.shape)}"
    return f"a Python {type(own).__name__}"
