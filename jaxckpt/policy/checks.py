"""Checks of the arguments of policies, and of what foreign ones answer."""

from __future__ import annotations

import math
from collections.abc import Iterable

from jaxckpt.errors import InvalidOptionsError


def check_count(name: str, value: object) -> None:
    """Refuses what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionsError(name, value, "a whole number, 1 or more")


def check_positive(name: str, value: object, unit: str) -> None:
    """Refuses what is not a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionsError(name, value, f"{unit}, more than 0")
    if not math.isfinite(value) or value <= 0:
        raise InvalidOptionsError(name, value, f"{unit}, more than 0")


def checked_steps(name: str, value: Iterable[int]) -> frozenset[int]:
    """Step numbers as a set."""
    expected = "step numbers, 0 or more, such as {100, 200}"
    try:
        steps = frozenset(value)
    except TypeError:
        raise InvalidOptionsError(name, value, expected) from None
    for step in steps:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOptionsError(name, value, expected)
    return steps


def check_policy(name: str, value: object, method: str) -> None:
    """Refuses an object that can not be asked."""
    if not callable(getattr(value, method, None)):
        raise InvalidOptionsError(name, value, f"a policy, an object with a method {method}")


def check_not_negative(name: str, value: object, unit: str) -> None:
    """Refuses what is not a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionsError(name, value, f"{unit}, 0 or more")
    if not math.isfinite(value) or value < 0:
        raise InvalidOptionsError(name, value, f"{unit}, 0 or more")


def check_share(name: str, value: object) -> None:
    """Refuses what is not a share of a whole, without none and all of it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise InvalidOptionsError(name, value, "a share between 0 and 1, such as 0.03")
