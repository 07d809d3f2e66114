"""Element types: their names on disk and in memory."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

_NUMPY = ("bool", "float16", "float32", "float64", "complex64", "complex128")
_NUMPY_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_ML = ("bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn")
_ML_FLOAT8 = tuple(
    f"float8_{form}"
    for form in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
)

DTYPES: dict[str, np.dtype] = {name: np.dtype(name) for name in _NUMPY + _NUMPY_INTEGERS} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML + _ML_FLOAT8
}
"""All element types that can be saved, by numpy's name; each takes whole bytes on the host."""

# TensorStore has no name for these. As uint8 the small integers keep their values for every
# reader. float8_e4m3 keeps its own name, which makes other readers refuse instead of
# returning its bit patterns as numbers.
_ZARR_NAMES = {"uint2": "uint8", "uint4": "uint8"}


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype) -> str:
    """The dtype's name; numpy makes it anew each time, which costs more than all the rest."""
    return dtype.name


def zarr_name(dtype: str) -> str:
    """The Zarr v3 ``data_type`` under which elements of a numpy dtype are stored."""
    return _ZARR_NAMES.get(dtype, dtype)


def zarr_fill_value(dtype: str) -> object:
    """Zero in the JSON form that Zarr v3 asks for."""
    kind = "c" if dtype.startswith("complex") else "f" if "float" in dtype else dtype
    return {"c": [0.0, 0.0], "f": 0.0, "bool": False}.get(kind, 0)
