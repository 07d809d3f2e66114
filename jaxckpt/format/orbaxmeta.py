"""The JSON files that stock orbax 0.12 expects beside the data, written and read.

`_METADATA` names the leaves, `_sharding` and `array_metadatas/` describe arrays, `_strings.json`
holds strings, `_CHECKPOINT_METADATA` describes a step or a stand-alone checkpoint. The forms were
read off the files that orbax-checkpoint 0.12.8 writes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxckpt._types import LeafSpec, PathEntry
from jaxckpt.format import strictjson
from jaxckpt.format.frame import FormatError

TREE_NAME = "_METADATA"
SHARDING_NAME = "_sharding"
STRINGS_NAME = "_strings.json"
STEP_NAME = "_CHECKPOINT_METADATA"
ARRAYS_DIR = "array_metadatas"
JSON_ITEM_NAME = "metadata"
METRICS_ITEM = "metrics"  # also the name of the file in it
STANDARD_HANDLER = (
    "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
)
JSON_HANDLER = "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler"

_SEQUENCE_KEY, _DICT_KEY = 1, 2
_EMPTY_TYPES = {"dict": "Dict", "list": "List", "tuple": "Tuple", "node": "None"}
_VALUE_TYPES = {
    "jax": "jax.Array",
    "prng": "jax.Array",
    "numpy": "np.ndarray",
    "complex": "np.ndarray",  # orbax knows no complex scalars
    "str": "string",
    "none": "None",
}


def encode_tree(leaves: Sequence[LeafSpec]) -> bytes:
    """`_METADATA`: each leaf's path and what it is."""
    entries: dict[str, object] = {}
    for leaf in leaves:
        value: dict[str, object] = {
            "value_type": _VALUE_TYPES.get(leaf.kind, "scalar"),
            "skip_deserialize": leaf.kind in ("none", "empty"),
        }
        if _is_text(leaf):
            value["value_type"] = "string"
        if leaf.kind == "empty":
            value["value_type"] = _EMPTY_TYPES[leaf.value]
        if leaf.kind in ("jax", "prng"):
            value["write_shape"] = leaf.chunk_shape
        entries[str(tuple(name for _, name in leaf.path))] = {
            "key_metadata": [
                {"key": name, "key_type": _SEQUENCE_KEY if kind == "index" else _DICT_KEY}
                for kind, name in leaf.path
            ],
            "value_metadata": value,
        }
    return _dumps(
        {
            "tree_metadata": entries,
            "use_ocdbt": True,
            "use_zarr3": True,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
    )


def encode_shardings(leaves: Sequence[LeafSpec]) -> bytes:
    """`_sharding`: the sharding that each array was saved from."""
    return _dumps(
        {
            base64.b64encode(leaf.name.encode()).decode(): leaf.sharding
            for leaf in leaves
            if leaf.sharding is not None
        }
    )


def encode_array_metadatas(leaves: Sequence[LeafSpec]) -> bytes:
    """`array_metadatas/process_<n>`: chunk shapes, and which arrays are PRNG keys."""
    return _dumps(
        {
            "array_metadatas": [
                {
                    "array_metadata": {
                        "param_name": leaf.name,
                        "write_shape": leaf.chunk_shape,
                        "chunk_shape": leaf.chunk_shape,
                        "ext_metadata": {"random_key_impl": leaf.impl} if leaf.impl else None,
                    }
                }
                for leaf in leaves
                if leaf.kind in ("jax", "prng")
            ]
        }
    )


def encode_strings(leaves: Sequence[LeafSpec]) -> bytes:
    """`_strings.json`: the strings of the tree by leaf, and ints that no int64 holds."""
    return _dumps({leaf.name: leaf.value for leaf in leaves if _is_text(leaf)})


def _is_text(leaf: LeafSpec) -> bool:
    return leaf.kind == "str" or (leaf.kind == "int" and not leaf.dtype)


def encode_step(
    item_handlers: str | Mapping[str, str],
    init_ns: int,
    commit_ns: int,
) -> bytes:
    """`_CHECKPOINT_METADATA`: of a step (handlers by item) or of a stand-alone item (one)."""
    return _dumps(
        {
            "item_handlers": item_handlers,
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": init_ns,
            "commit_timestamp_nsecs": commit_ns,
            "custom_metadata": {},
        }
    )


def decode_step(data: bytes, what: str) -> dict[str, str] | str | None:
    """The item handlers of a step's metadata; None when it was never committed."""
    doc = strictjson.parse(data, what)
    if not isinstance(doc, dict):
        raise FormatError(f"{what} is no JSON object")
    fields = cast("dict[str, Any]", doc)
    if not isinstance(fields.get("commit_timestamp_nsecs"), int):
        return None
    handlers: Any = fields.get("item_handlers")
    if isinstance(handlers, dict):
        names = cast("dict[Any, Any]", handlers)
        plain = all(isinstance(k, str) and isinstance(v, str | None) for k, v in names.items())
        if plain and not any(k in ("", ".", "..") or set(k) & {"/", "\0", "\\"} for k in names):
            return cast("dict[str, str]", names)
    if isinstance(handlers, str):
        return handlers
    if handlers is None:
        return {}
    raise FormatError(f"{what}: item_handlers is {handlers!r:.100}")


def decode_step_facts(data: bytes, what: str) -> tuple[int, dict[str, Any] | None]:
    """When a step's save began, nanoseconds since 1970, and its metrics; as far as it says so."""
    doc = strictjson.parse(data, what)
    fields = cast("dict[str, Any]", doc) if isinstance(doc, dict) else {}
    began, metrics = fields.get("init_timestamp_nsecs"), fields.get("metrics")
    known = cast("dict[str, Any]", metrics) if isinstance(metrics, dict) and metrics else None
    return began if isinstance(began, int) else 0, known


def decode_metrics(data: bytes, what: str) -> dict[str, Any] | None:
    """The metrics in orbax's own item of them."""
    doc = strictjson.parse(data, what)
    return cast("dict[str, Any]", doc) if isinstance(doc, dict) else None


@dataclass(frozen=True, slots=True)
class OrbaxLeaf:
    """A leaf as `_METADATA` tells it."""

    path: tuple[PathEntry, ...]
    value_type: str


@dataclass(frozen=True, slots=True)
class OrbaxTree:
    """A decoded `_METADATA`; the two flags are None where an old file does not say."""

    leaves: tuple[OrbaxLeaf, ...]
    use_ocdbt: bool | None
    use_zarr3: bool


def decode_tree(data: bytes, what: str) -> OrbaxTree:
    """Reads `_METADATA`."""
    doc = strictjson.parse(data, what)
    try:
        leaves: list[OrbaxLeaf] = []
        for entry in doc["tree_metadata"].values():
            path: list[PathEntry] = []
            for key in entry["key_metadata"]:
                kind = {_SEQUENCE_KEY: "index", _DICT_KEY: "key"}[key["key_type"]]
                if kind == "index":
                    int(key["key"])
                path.append((cast("Any", kind), str(key["key"])))
            leaves.append(OrbaxLeaf(tuple(path), str(entry["value_metadata"]["value_type"])))
        ocdbt = doc.get("use_ocdbt")
        return OrbaxTree(tuple(leaves), ocdbt, bool(doc.get("use_zarr3")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{what} is not in orbax's form: {error!r}") from error


def decode_key_impls(data: bytes, what: str) -> dict[str, str]:
    """The PRNG implementation by leaf name, from an `array_metadatas` file."""
    doc = strictjson.parse(data, what)
    try:
        found: dict[str, str] = {}
        for entry in doc["array_metadatas"]:
            fields = entry["array_metadata"]
            impl = (fields.get("ext_metadata") or {}).get("random_key_impl")
            if impl:
                found[str(fields["param_name"])] = str(impl)
        return found
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{what} is not in orbax's form: {error!r}") from error


def _dumps(doc: object) -> bytes:
    return json.dumps(doc).encode()
