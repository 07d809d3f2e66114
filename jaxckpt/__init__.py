"""Checkpoints for JAX at the speed of the disk, readable by plain orbax.

Names are imported when they are used: looking at files needs neither jax nor orbax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxckpt._options import Options
from jaxckpt._version import __version__
from jaxckpt.errors import (
    CheckpointNotFoundError,
    ClosedError,
    CollectiveFailedError,
    DamagedCheckpointError,
    DamagedStepWarning,
    DonatedTooEarlyError,
    FormatVersionError,
    InvalidOptionsError,
    JaxckptError,
    JournalWarning,
    NotACheckpointError,
    NotSharedError,
    PeerFailedError,
    PeerMissingError,
    PreemptedError,
    PreemptedWarning,
    ProcessesDisagreeError,
    StepExistsError,
    StepNotFoundError,
    StorageError,
    TreeMismatchError,
    UnsupportedLeafError,
    UnsupportedTopologyError,
)

if TYPE_CHECKING:
    from jaxckpt.checkpointer import Checkpointer
    from jaxckpt.deciding import JobWide
    from jaxckpt.handlers import ShardedCheckpointHandler, ShardedRestore, ShardedSave
    from jaxckpt.reporting import report
    from jaxckpt.single import restore, save

_LATER = {
    "Checkpointer": "jaxckpt.checkpointer",
    "JobWide": "jaxckpt.deciding",
    "ShardedCheckpointHandler": "jaxckpt.handlers",
    "ShardedRestore": "jaxckpt.handlers",
    "ShardedSave": "jaxckpt.handlers",
    "report": "jaxckpt.reporting",
    "restore": "jaxckpt.single",
    "save": "jaxckpt.single",
}

__all__ = [
    "CheckpointNotFoundError",
    "Checkpointer",
    "ClosedError",
    "CollectiveFailedError",
    "DamagedCheckpointError",
    "DamagedStepWarning",
    "DonatedTooEarlyError",
    "FormatVersionError",
    "InvalidOptionsError",
    "JaxckptError",
    "JobWide",
    "JournalWarning",
    "NotACheckpointError",
    "NotSharedError",
    "Options",
    "PeerFailedError",
    "PeerMissingError",
    "PreemptedError",
    "PreemptedWarning",
    "ProcessesDisagreeError",
    "ShardedCheckpointHandler",
    "ShardedRestore",
    "ShardedSave",
    "StepExistsError",
    "StepNotFoundError",
    "StorageError",
    "TreeMismatchError",
    "UnsupportedLeafError",
    "UnsupportedTopologyError",
    "__version__",
    "report",
    "restore",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'jaxckpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
