"""Hypothesis strategies for pytrees such as training states are, and exact comparison of them.

Needs the package hypothesis.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxckpt.format.dtypes import DTYPES

_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
_HARD_FLOATS = (0.0, -0.0, float("inf"), float("-inf"), 1e-308, 5e-324)
_NAN_PAYLOAD = struct.unpack(">d", bytes.fromhex("7ff80000deadbeef"))[0]
KEY_IMPLS = ("threefry2x32", "rbg", "unsafe_rbg")


class Pair(NamedTuple):
    """A namedtuple of the drawn trees."""

    first: Any
    second: Any


@flax.struct.dataclass
class Record:
    """A dataclass of the drawn trees."""

    weights: Any
    extra: Any


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of 0 to 4 axes, some of length 0."""
    return st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def numpy_arrays(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> np.ndarray:
    """Arrays of every element type, their bits drawn, so -0.0 and NaN payloads are among them."""
    dtype = DTYPES[draw(st.sampled_from(dtypes))]
    shape = draw(shapes())
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(
        draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize)), np.uint8
    )
    if dtype == bool:
        return (raw & 1).astype(bool).reshape(shape)
    if dtype.name.startswith(("int", "uint")) and dtype.itemsize == 1:
        return raw.astype(dtype).reshape(shape)  # 2- and 4-bit numbers use a part of their byte
    if dtype.name == "float4_e2m1fn":
        return (raw & 15).view(dtype).reshape(shape)
    return raw.copy().view(dtype).reshape(shape)


def jax_arrays() -> st.SearchStrategy[jax.Array]:
    """Arrays on the default device, of every dtype that the configuration allows."""
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    allowed = tuple(n for n in DTYPES if wide or n not in _WIDE)
    return numpy_arrays(allowed).map(jnp.asarray)


def prng_keys() -> st.SearchStrategy[jax.Array]:
    """Typed keys of each implementation, alone or a few."""

    def make(impl: str, seed: int, count: int) -> jax.Array:
        key = jax.random.key(seed, impl=impl)
        return jax.random.split(key, count) if count else key

    return st.builds(make, st.sampled_from(KEY_IMPLS), st.integers(0, 99), st.integers(0, 3))


def values() -> st.SearchStrategy[Any]:
    """Python values and numpy scalars."""
    floats = st.one_of(st.floats(), st.sampled_from((*_HARD_FLOATS, _NAN_PAYLOAD)))
    scalars = numpy_arrays().filter(lambda a: a.size > 0).map(lambda a: a.reshape(-1)[0])
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**63), 2**63 - 1),
        floats,
        st.complex_numbers(allow_nan=True),
        st.text(max_size=20),
        scalars,
    )


def leaves() -> st.SearchStrategy[Any]:
    """Anything that can be a leaf."""
    return st.one_of(jax_arrays(), numpy_arrays(), prng_keys(), values())


def trees(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Trees of dicts with str or int keys, lists, tuples, namedtuples and dataclasses.

    Keys have no dots, so that no two leaves have the same dotted name.
    """
    names = st.text(
        st.characters(blacklist_characters=".", blacklist_categories=["Cs"]), max_size=8
    )

    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.dictionaries(names, children, max_size=4),
            st.dictionaries(st.integers(-3, 300), children, max_size=4),
            st.lists(children, max_size=4),
            st.lists(children, max_size=4).map(tuple),
            st.builds(Pair, children, children),
            st.builds(Record, children, children),
        )

    return st.recursive(leaves(), containers, max_leaves=max_leaves)


def assert_same(saved: Any, restored: Any) -> None:
    """Same tree types, and each leaf the same to the bit, with its type, dtype and sharding."""
    left = jax.tree_util.tree_flatten_with_path(saved, is_leaf=lambda x: x is None)
    right = jax.tree_util.tree_flatten_with_path(restored, is_leaf=lambda x: x is None)
    assert left[1] == right[1], f"the trees differ: {left[1]} and {right[1]}"
    for (path, a), (_, b) in zip(left[0], right[0], strict=True):
        where = jax.tree_util.keystr(path)
        if isinstance(a, jax.Array):
            assert isinstance(b, jax.Array), f"{where}: {type(b)}"
            assert a.sharding == b.sharding, f"{where}: {a.sharding} and {b.sharding}"
        else:
            assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
        assert bits_of(a) == bits_of(b), f"{where}: {a!r} and {b!r}"


def bits_of(x: Any) -> tuple[Any, ...]:
    """Everything that makes a leaf what it is, comparable."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return ("key", str(jax.random.key_impl(x)), x.shape, *bits_of(jax.random.key_data(x)))
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        array = np.asarray(x)
        return (array.dtype.name, array.shape, array.tobytes())
    if isinstance(x, float):
        return ("float", struct.pack(">d", x))
    if isinstance(x, complex):
        return ("complex", struct.pack(">dd", x.real, x.imag))
    return (type(x).__name__, x)
