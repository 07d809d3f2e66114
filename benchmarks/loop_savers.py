"""The ways in which a training loop saves: jaxckpt, orbax async and torch DCP async."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

import jaxckpt
from benchmarks import disk

COPY, NONE = "copy", "none"
EAGER, LAZY, VIEWS = "jaxckpt", "jaxckpt-lazy", "jaxckpt-views"
ORBAX, ORBAX_RAW, ORBAX_FREE = "orbax", "orbax-raw", "orbax-continuous"
TORCH, TORCH_KEPT = "torch", "torch-stager"
OURS = (EAGER, LAZY)
ORBAXES = (ORBAX, ORBAX_RAW, ORBAX_FREE)
TORCHES = (TORCH, TORCH_KEPT)
LABELS = {
    COPY: "plain copy",
    NONE: "no checkpoints",
    EAGER: "jaxckpt",
    LAZY: "jaxckpt, lazy",
    VIEWS: "jaxckpt, views",
    ORBAX: "orbax async",
    ORBAX_RAW: "orbax async, raw",
    ORBAX_FREE: "orbax async, raw, as often as it can",
    TORCH: "torch DCP async",
    TORCH_KEPT: "torch DCP async, stager kept",
}

Tree = dict[str, jax.Array]


@dataclass(frozen=True)
class Counts:
    """What became of the saves so far.

    Attributes:
        durable: saves that ended with a step.
        dropped: snapshots that were dropped for newer ones.
        waited_secs: of training, for room; None where the library does not say.
    """

    durable: int
    dropped: int
    waited_secs: float | None


@dataclass(frozen=True, kw_only=True)
class Saver:
    """One way to save in a loop.

    Attributes:
        name: in results; a key of ``LABELS``.
        settings: what a reader needs to repeat it.
        save: called with a step and a state; returns when the loop may go on.
        ready: blocks until the state may be donated.
        finish: blocks until all saves have ended.
        counts: so far.
        close: ends it.
    """

    name: str
    settings: str
    save: Callable[[int, Tree], None]
    ready: Callable[[], None] = field(default=lambda: None)
    finish: Callable[[], None]
    counts: Callable[[], Counts]
    close: Callable[[], None]


def ours(folder: str, *, lazy: bool = False, views: bool = False, keep_last: int = 2) -> Saver:
    """jaxckpt with its defaults, or lazy, or allowed to look at arrays instead of copying them."""
    options = jaxckpt.Options(views=views)
    checkpointer = jaxckpt.Checkpointer(folder, keep_last=keep_last, options=options)
    saves = _Counter()

    def save(step: int, state: Tree) -> None:
        saves.count += checkpointer.save(step, state, lazy=lazy)

    def counts() -> Counts:
        dropped = checkpointer.dropped
        return Counts(saves.count - dropped, dropped, checkpointer.report().waited_secs)

    given = ", options=Options(views=True)" if views else ""
    words = f"Checkpointer(run, keep_last={keep_last}{given}), save(step, state"
    return Saver(
        name=LAZY if lazy else VIEWS if views else EAGER,
        settings=f"{words}, lazy=True), wait_staged()" if lazy else f"{words})",
        save=save,
        ready=checkpointer.wait_staged,
        finish=checkpointer.wait,
        counts=counts,
        close=checkpointer.close,
    )


def orbax(folder: str, kind: str = ORBAX, keep_last: int = 2) -> Saver:
    """``CheckpointManager`` as it comes, raw, or raw and saving only when nothing is under way.

    Raw is without compression, which is what makes orbax faster.
    """
    # Orbax warns of what this benchmark means: steps that come before the last is written.
    logging.set_verbosity(logging.ERROR)
    raw = kind != ORBAX
    policy = None
    if kind == ORBAX_FREE:
        policy = ocp.checkpoint_managers.ContinuousCheckpointingPolicy()
    options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, save_decision_policy=policy)
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, use_ocdbt=True, use_compression=False)
    manager = ocp.CheckpointManager(folder, options=options, item_handlers=handler if raw else None)
    saves = _Counter()

    def save(step: int, state: Tree) -> None:
        args = ocp.args.PyTreeSave(state) if raw else ocp.args.StandardSave(state)
        saves.count += manager.save(step, args=args)

    words = f"CheckpointManager(run, max_to_keep={keep_last}"
    if kind == ORBAX_FREE:
        words += ", save_decision_policy=ContinuousCheckpointingPolicy()"
    raw_words = "), PyTreeCheckpointHandler(use_zarr3, use_ocdbt, use_compression=False)"
    return Saver(
        name=kind,
        settings=words + (raw_words if raw else "), StandardSave"),
        save=save,
        finish=manager.wait_until_finished,
        counts=lambda: Counts(saves.count, 0, None),
        close=manager.close,
    )


def torch_dcp(
    folder: str, kind: str = TORCH, keep_last: int = 2, views: dict[str, Any] | None = None
) -> Saver:
    """``async_save``, which leaves waiting for the save before, and old steps, to its caller.

    Args:
        views: numpy arrays to save in place of views of the state's, whose data is on many devices.

    Raises:
        ImportError: torch is not installed.
    """
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    # One process is what is meant here, and the views are only read.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    stager = None
    if kind == TORCH_KEPT:
        stager = DefaultStager(StagingOptions(False, False, False, False))
    going: list[Future[Any]] = []
    steps: list[int] = []
    saves = _Counter()
    kept = views and {name: torch.from_numpy(leaf) for name, leaf in views.items()}

    def finish() -> None:
        while going:
            going.pop().result()
            saves.count += 1
        while len(steps) > keep_last:
            disk.remove(f"{folder}/{steps.pop(0)}")

    def save(step: int, state: Tree) -> None:
        finish()
        tensors = kept or {name: torch.from_numpy(np.asarray(x)) for name, x in state.items()}
        going.append(
            dcp.async_save(
                tensors, checkpoint_id=f"{folder}/{step}", async_stager=stager, no_dist=True
            )
        )
        steps.append(step)

    def close() -> None:
        finish()
        if stager is not None:
            stager.close()

    words = "async_save(no_dist=True), the future before it waited for"
    return Saver(
        name=kind,
        settings=words + ("; one DefaultStager for all saves" if stager else ""),
        save=save,
        finish=finish,
        counts=lambda: Counts(saves.count, 0, None),
        close=close,
    )


class _Counter:
    def __init__(self) -> None:
        self.count = 0
