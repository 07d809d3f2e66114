"""JSON from files that nobody vouches for: bounded, strict UTF-8, no duplicate keys, no NaN."""

from __future__ import annotations

import json
from typing import Any

from jaxckpt.format.frame import FormatError
from jaxckpt.format.limits import MAX_JSON_BYTES


def parse(data: bytes, what: str, limit: int = MAX_JSON_BYTES) -> Any:
    """The document, or a FormatError that says what is wrong with it."""
    if len(data) > limit:
        raise FormatError(f"{what} has {len(data)} bytes; allowed are {limit}")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise FormatError(f"{what} is not UTF-8: {error}") from error
    except RecursionError as error:
        raise FormatError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise FormatError(f"{what} is no JSON document: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
