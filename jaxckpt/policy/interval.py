"""The interval between saves that loses least time, for failures that come at random.

What is counted. Training goes on for ``interval`` seconds, then a save stops it for ``stall``
seconds and is durable ``write`` seconds after its call, in the background. Failures are a Poisson
process with a mean of ``mtbf`` seconds between two, at any moment, also while the job comes back.
After one, ``restore`` seconds pass without a further failure, and training goes on from the last
durable step.

With L = 1 / mtbf and P = interval + stall, save k of an attempt is durable kP + write - stall
seconds after training began, and is there when the failure strikes with probability
exp(-L (kP + write - stall)). The sum over k is a geometric series: an attempt keeps

    interval exp(-L (write - stall)) / (exp(L P) - 1)

seconds of training and lasts mtbf seconds, and coming back takes (exp(L restore) - 1) mtbf, so

    ETTR = L interval exp(-L (write - stall + restore)) / (exp(L P) - 1).

For a save that is waited for (write = stall) this is the model of Daly 2006. ``write`` and
``restore`` are factors before the rest: they lower the ETTR and do not move its maximum, which is
where 1 - x = exp(-x - L stall), x = L interval.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974. J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxckpt.policy.checks import check_not_negative, check_positive, check_share

STALL_BUDGET = 0.03
"""The share of the time that saves may stop training, unless another is asked for."""

Limit = Literal["lost time", "stall budget", "write time", "step time"]


@dataclass(frozen=True)
class Choice:
    """An interval, and why it is this one.

    Attributes:
        interval_secs: training between two saves, in seconds, without the stall itself.
        expected_ettr: the share of the time that ends up in steps that are kept.
        limited_by: ``"lost time"`` where the interval is the best one; else what made it longer.
        why: one sentence with the figures.
    """

    interval_secs: float
    expected_ettr: float
    limited_by: Limit
    why: str


def young(stall_secs: float, mtbf_secs: float) -> float:
    """Seconds between saves by Young 1974: sqrt(2 stall mtbf).

    Raises:
        InvalidOptionsError: a negative stall, or no mean time between failures.
    """
    check_not_negative("stall_secs", stall_secs, "seconds")
    check_positive("mtbf_secs", mtbf_secs, "seconds")
    return math.sqrt(2 * stall_secs * mtbf_secs)


def daly(stall_secs: float, mtbf_secs: float) -> float:
    """Seconds between saves by Daly 2006: Young's with two more terms of the series.

    Raises:
        InvalidOptionsError: a negative stall, or no mean time between failures.
    """
    first = young(stall_secs, mtbf_secs)
    if stall_secs >= 2 * mtbf_secs:
        return mtbf_secs
    part = stall_secs / (2 * mtbf_secs)
    return first * (1 + math.sqrt(part) / 3 + part / 9) - stall_secs


def best_interval(stall_secs: float, mtbf_secs: float) -> float:
    """Seconds of training between saves where the expected ETTR has its maximum; no bounds.

    Raises:
        InvalidOptionsError: a negative stall, or no mean time between failures.
    """
    check_not_negative("stall_secs", stall_secs, "seconds")
    check_positive("mtbf_secs", mtbf_secs, "seconds")
    share = stall_secs / mtbf_secs
    # Newton's method on the convex -x - log(1 - x) = share, from the right: it only comes closer.
    x = min(math.sqrt(2 * share), -math.expm1(-1 - share))
    for _ in range(20 if 0 < x < 1 else 0):
        step = (_minus_x_minus_log(x) - share) * (1 - x) / x
        x -= step
        if abs(step) <= 1e-15 * x:
            break
    return x * mtbf_secs


def expected_ettr(
    interval_secs: float,
    *,
    stall_secs: float,
    mtbf_secs: float,
    write_secs: float = 0.0,
    restore_secs: float = 0.0,
) -> float:
    """The share of the time that ends up in steps that are kept; see the module for the sum.

    Where saves are called more often than one can be written, the writer sets the pace: a step gets
    durable every ``write_secs``, and training still stops for each call.

    Args:
        interval_secs: training between two saves, without the stall.
        stall_secs: training stops this long for a save.
        mtbf_secs: mean time between failures of the whole job.
        write_secs: from the call of a save until it is durable; at least the stall.
        restore_secs: from a failure until training goes on.

    Raises:
        InvalidOptionsError: a figure is negative, or the interval or the mean time is 0.
    """
    check_positive("interval_secs", interval_secs, "seconds")
    check_positive("mtbf_secs", mtbf_secs, "seconds")
    for name, value in (
        ("stall_secs", stall_secs),
        ("write_secs", write_secs),
        ("restore_secs", restore_secs),
    ):
        check_not_negative(name, value, "seconds")
    write_secs = max(write_secs, stall_secs)
    called = interval_secs + stall_secs
    durable = max(called, write_secs)
    gained = interval_secs / called * durable
    exponent = durable / mtbf_secs
    # Divided by exp(exponent) above and below: large exponents give 0 instead of an overflow.
    late = exponent + (write_secs - stall_secs + restore_secs) / mtbf_secs
    return gained / mtbf_secs * math.exp(-late) / -math.expm1(-exponent)


def choose(
    *,
    stall_secs: float,
    mtbf_secs: float,
    write_secs: float = 0.0,
    restore_secs: float = 0.0,
    step_secs: float = 0.0,
    stall_budget: float = STALL_BUDGET,
) -> Choice:
    """The best interval within the bounds, in whole steps where their length is known.

    The bounds: saves stop training for at most ``stall_budget`` of the time; they are not called
    more often than one can be written, since no more of them would get durable; and not more often
    than once a step. The other arguments are those of `expected_ettr`.

    Raises:
        InvalidOptionsError: a figure is negative, the mean time is 0, or the budget is not a share.
    """
    check_share("stall_budget", stall_budget)
    for name, value in (
        ("write_secs", write_secs),
        ("restore_secs", restore_secs),
        ("step_secs", step_secs),
    ):
        check_not_negative(name, value, "seconds")
    best = best_interval(stall_secs, mtbf_secs)
    bounds: dict[Limit, float] = {
        "stall budget": stall_secs * (1 - stall_budget) / stall_budget,
        "write time": max(0.0, write_secs - stall_secs),
        "step time": step_secs,
    }

    def ettr(interval: float) -> float:
        return expected_ettr(
            interval,
            stall_secs=stall_secs,
            mtbf_secs=mtbf_secs,
            write_secs=write_secs,
            restore_secs=restore_secs,
        )

    least = max(bounds.values())
    limited: Limit = "lost time" if best >= least else max(bounds, key=lambda name: bounds[name])
    interval = max(best, least) or 1e-9 * mtbf_secs  # a save that costs nothing: all the time
    if step_secs > 0:
        interval = _whole_steps(best, least, step_secs, ettr)
    expected = ettr(interval)
    reasons: dict[Limit, str] = {
        "stall budget": f"stalls of {said(stall_secs)} may take at most "
        f"{100 * stall_budget:.3g} % of the time",
        "write time": f"a save needs {said(write_secs)} until it is durable",
        "step time": f"one step takes {said(step_secs)}",
    }
    facts = (
        f"a stall of {said(stall_secs)} and a failure every {said(mtbf_secs)} lose least time there"
        if limited == "lost time"
        else f"least time would be lost at {said(best)}, but {reasons[limited]}"
    )
    why = f"a save after every {said(interval)} of training: {facts} (expected ETTR {expected:.4f})"
    return Choice(interval, expected, limited, why)


def said(secs: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if secs >= 2 * length:
            return f"{secs / length:.3g} {unit}"
    return f"{secs:.3g} s" if secs >= 1 or secs == 0 else f"{secs * 1e3:.3g} ms"


def _whole_steps(
    best: float, least: float, step_secs: float, ettr: Callable[[float], float]
) -> float:
    """Of the two multiples of a step beside the best, the better one that is within the bounds."""
    lowest = max(1, math.ceil(least / step_secs - 1e-9))
    below = max(lowest, math.floor(best / step_secs))
    return max((below * step_secs, (below + 1) * step_secs), key=ettr)


def _minus_x_minus_log(x: float) -> float:
    """-x - log(1 - x), exact where x is small and the two terms cancel."""
    if x > 0.01:
        return -x - math.log1p(-x)
    return sum(x**k / k for k in range(2, 10))
