"""When to save and what to keep: facts in, answer out, no I/O, no clock.

Policies have the shape of orbax's save decision and preservation policies, and work in
`jaxckpt.Checkpointer` and in `orbax.checkpoint.CheckpointManager`. Combine them with ``|``::

    save = policy.every_minutes(10) | policy.AtSteps({1000}) | policy.OnPreemption()
    keep = policy.KeepLast(2) | policy.KeepBest(1, "loss")
"""

from jaxckpt.policy.autopilot import Autopilot
from jaxckpt.policy.facts import (
    CheckpointInfo,
    KeepContext,
    KeepPolicy,
    Measurements,
    SaveContext,
    SavePolicy,
    StepInfo,
)
from jaxckpt.policy.failures import learned_mtbf_secs
from jaxckpt.policy.interval import Choice, best_interval, choose, daly, expected_ettr, young
from jaxckpt.policy.keeping import (
    AnyKeep,
    KeepAll,
    KeepBest,
    KeepEverySecs,
    KeepEverySteps,
    KeepLast,
    KeepSteps,
    must_keep,
    removable,
)
from jaxckpt.policy.meter import Meter
from jaxckpt.policy.saving import (
    AnySave,
    AtSteps,
    EverySecs,
    EverySteps,
    OnPreemption,
    by_step_alone,
    every_minutes,
    next_look,
)

__all__ = [
    "AnyKeep",
    "AnySave",
    "AtSteps",
    "Autopilot",
    "CheckpointInfo",
    "Choice",
    "EverySecs",
    "EverySteps",
    "KeepAll",
    "KeepBest",
    "KeepContext",
    "KeepEverySecs",
    "KeepEverySteps",
    "KeepLast",
    "KeepPolicy",
    "KeepSteps",
    "Measurements",
    "Meter",
    "OnPreemption",
    "SaveContext",
    "SavePolicy",
    "StepInfo",
    "best_interval",
    "by_step_alone",
    "choose",
    "daly",
    "every_minutes",
    "expected_ettr",
    "learned_mtbf_secs",
    "must_keep",
    "next_look",
    "removable",
    "young",
]
