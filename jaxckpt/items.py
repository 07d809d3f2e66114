"""The items of a step: the state under its name, JSON values under theirs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from jaxckpt.errors import InvalidOptionsError
from jaxckpt.format import orbaxmeta, strictjson

_LONGEST_ITEM_NAME = 100
SINGLE_ITEM, STATE_ITEM, METRICS_ITEM = "default", "state", orbaxmeta.METRICS_ITEM
"""The item of the state. Orbax's manager takes ``default`` for the only item of a step, and refuses
that name where there are others; then it is ``state``."""


def is_item_name(name: object) -> bool:
    """Whether a value may go to JSON under this name."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        return False
    return name not in (SINGLE_ITEM, STATE_ITEM, METRICS_ITEM) and len(name) <= _LONGEST_ITEM_NAME


def state_item_name(items: Mapping[str, Any]) -> str:
    """The name of the state beside these items."""
    return STATE_ITEM if set(items) - {METRICS_ITEM} else SINGLE_ITEM


def encode_items(
    items: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None = None
) -> dict[str, bytes]:
    """The JSON of each item, by name; that of metrics under orbax's name for them.

    Raises:
        InvalidOptionsError: a name or a value can not be used.
    """
    encoded: dict[str, bytes] = {}
    if items is not None and not isinstance(items, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOptionsError("items", items, "a dict of names and JSON values")
    for name, value in (items or {}).items():
        if not is_item_name(name):
            raise InvalidOptionsError(
                "items",
                name,
                "names that are identifiers, without '_' in front, and none of 'default', 'state' "
                "and 'metrics'",
            )
        try:
            encoded[name] = json.dumps(value, allow_nan=False).encode()
            strictjson.parse(encoded[name], name)  # keys that JSON makes equal, {1: 0, "1": 0}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOptionsError(
                f"items[{name!r}]", value, f"a value that JSON can hold ({error})"
            ) from error
    if metrics:
        encoded[METRICS_ITEM] = json.dumps(metrics).encode()
    return encoded


def checked_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float | None] | None:
    """Metrics as numbers of Python; None for one that is not finite, which JSON has no form for.

    Raises:
        InvalidOptionsError: a name is no text, or a value no number.
    """
    if metrics is None:
        return None
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOptionsError("metrics", metrics, "a dict of names and numbers")
    checked: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InvalidOptionsError(f"metrics[{name!r}]", value, "a number") from error
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError("metrics", name, "names that are text")
        checked[name] = number if math.isfinite(number) else None
    return checked
