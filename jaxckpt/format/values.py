"""Python values as text, exactly: the sidecar's form of int, float, complex, bool and str."""

from __future__ import annotations

import struct
from typing import Any

from jaxckpt._types import LeafSpec


def value_text(value: bool | complex | str) -> str:
    """The text of a value; floats by their bits, so that -0.0 and NaN payloads stay."""
    if isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    return struct.pack(">dd", value.real, value.imag).hex()


def value_dtype(kind: str, text: str) -> str:
    """The dtype of the 0-d array that other readers find; "" where there is none."""
    if kind == "int":
        return "int64" if len(text) < 21 and -(2**63) <= int(text) < 2**63 else ""
    return {"float": "float64", "complex": "complex128", "bool": "bool"}.get(kind, "")


def text_value(leaf: LeafSpec) -> Any:
    """The value of a leaf that is no array; an empty container comes back as a plain one."""
    text = leaf.value
    match leaf.kind:
        case "str":
            return text
        case "bool":
            return text == "True"
        case "int":
            return int(text)
        case "float":
            return struct.unpack(">d", bytes.fromhex(text))[0]
        case "complex":
            return complex(*struct.unpack(">dd", bytes.fromhex(text)))
        case "empty":
            return {"list": [], "tuple": ()}.get(text, {})
        case _:
            return None
