"""How often a job fails: as told, or from what is known of others and what was seen of this one."""

from __future__ import annotations

from jaxckpt.policy.checks import check_count, check_not_negative, check_positive

HOUR_SECS = 3600.0
DEVICE_HOURS = 50_677.0
"""Device-hours between failures: 419 unexpected interruptions in 54 days on 16,384 GPUs.

Source: "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.4 and table 5.
"""
PRIOR_FAILURES = 1.0
"""The weight of what is known of others; after a few failures of its own a job follows those."""


def learned_mtbf_secs(restarts: int, observed_secs: float, devices: int) -> float:
    """Mean seconds between failures of a job, from its restarts and a prior.

    The rate of a Poisson process with a Gamma prior has the posterior mean
    (prior failures + failures seen) / (prior time + time seen). The prior is one failure in
    `DEVICE_HOURS` of one device.

    Args:
        restarts: failures that were seen.
        observed_secs: the time over which they were seen.
        devices: of the job; it fails when any of them does.

    Raises:
        InvalidOptionsError: an argument is negative, or there are no devices.
    """
    check_not_negative("restarts", restarts, "a number of failures")
    check_not_negative("observed_secs", observed_secs, "seconds")
    check_count("devices", devices)
    prior_secs = PRIOR_FAILURES * DEVICE_HOURS * HOUR_SECS / devices
    return (prior_secs + observed_secs) / (PRIOR_FAILURES + restarts)


def given_mtbf_secs(
    mtbf_hours: float | None, device_mtbf_hours: float | None, devices: int
) -> float | None:
    """Mean seconds between failures of a job as its owner says; None where nothing was said.

    Raises:
        InvalidOptionsError: a figure is not above 0.
    """
    if mtbf_hours is not None:
        check_positive("mtbf_hours", mtbf_hours, "hours")
        return mtbf_hours * HOUR_SECS
    if device_mtbf_hours is not None:
        check_positive("device_mtbf_hours", device_mtbf_hours, "hours")
        return device_mtbf_hours * HOUR_SECS / devices
    return None
