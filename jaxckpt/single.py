"""One state, one directory: `save` and `restore`."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Generator
from typing import Any

from jaxckpt._options import MIB, Options, checked_options
from jaxckpt.agreeing import agree, check_shared
from jaxckpt.commit import Temporary, clean_leftovers, give_up, open_temporary, publish
from jaxckpt.dist import default_coordinator
from jaxckpt.errors import NotACheckpointError, StepExistsError, StorageError
from jaxckpt.format import orbaxmeta
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join, make_dirs, name_of, parent_of, write_file
from jaxckpt.io.world import World, local_world
from jaxckpt.places import checked_path, find_item, foreign_content
from jaxckpt.planning import StatePlan, fingerprint, plan_state
from jaxckpt.restoring import Leniency, open_any, restore_tree
from jaxckpt.saving import stage

_WINDOW_BYTES = 256 * MIB
"""A save that waits for its end anyway needs no more than this to keep the disk busy."""

_shared_pool_lock = threading.Lock()
_shared_pools: dict[int, HostPool] = {}


def save(
    path: str | os.PathLike[str],
    state: Any,
    *,
    force: bool = False,
    options: Options | None = None,
) -> None:
    """Saves a pytree into a directory of its own; blocks until it is durable.

    All or nothing: the directory appears whole, or not at all. Plain orbax's
    ``StandardCheckpointer`` and ``PyTreeCheckpointer`` restore it. Every process of the job must
    call it with the same state; each writes what it owns.

    Args:
        path: the directory to make; missing parents are made too.
        state: a pytree of jax and numpy arrays, PRNG keys, numbers, strings and None.
        force: replace what is there, if it is a checkpoint; the old one stays until the new one
            is durable.

    Raises:
        UnsupportedLeafError: a leaf can not be saved; nothing was written.
        StepExistsError: the path exists and ``force`` is False.
        StorageError: the file system refused something; nothing is left behind.
        ProcessesDisagreeError, PeerFailedError, PeerMissingError, NotSharedError: in a job of
            several processes; nothing is committed.
    """
    options = checked_options(options)
    world = local_world(default_coordinator(), require_direct=options.direct_io == "on")
    engine = Engine(options.writer_threads)
    try:
        with _borrowed_pool(min(_WINDOW_BYTES, options.memory_budget_bytes)) as pool:
            save_item(world, options, engine, pool, checked_path(path), state, force=force)
    finally:
        engine.close()


def save_item(
    world: World,
    options: Options,
    engine: Engine,
    pool: HostPool,
    path: str,
    state: Any,
    *,
    force: bool,
) -> None:
    """`save` in a given world."""
    started = world.wall_ns()
    coordinator = world.coordinator
    operation = coordinator.operation(f"save to {path}")
    temporary: Temporary | None = None
    with operation:
        try:
            plan = plan_state(state, options, coordinator.processes)
            place = ""
            if coordinator.is_primary:
                temporary = _open_place(world, options, path, plan, force=force)
                place = temporary.path
            if not operation.alone:
                place = agree(operation, fingerprint(plan, options), place)
            check_shared(world.store, operation, place)
            staged = stage(world, options, engine, pool, operation, plan, place, waits=True)
            staged.write()
            if temporary is not None:
                handlers = orbaxmeta.encode_step(
                    orbaxmeta.STANDARD_HANDLER, started, world.wall_ns()
                )
                write_file(world.store, join(place, orbaxmeta.STEP_NAME), handlers)
        except BaseException as error:
            if temporary is not None:
                give_up(world, operation, temporary, error)
            raise
        if temporary is not None:
            publish(world, temporary, path, replace=force)
        operation.meet("committed")


def _open_place(
    world: World, options: Options, path: str, plan: StatePlan, *, force: bool
) -> Temporary:
    """The primary's part before the first byte: what is there, is there room, where to write."""
    store, parent = world.store, parent_of(path)
    found = store.stat(path)
    if found is not None and not force:
        raise StepExistsError(path)
    if found is not None:
        _refuse_to_replace_others(world, path)
    for new in make_dirs(store, parent):
        store.sync_dir(parent_of(new))
    clean_leftovers(world, parent, only=name_of(path))
    refuse_if_full(world, options, parent, plan.nbytes)
    return open_temporary(world, path)


def _refuse_to_replace_others(world: World, path: str) -> None:
    """Only a checkpoint, a step, or an empty directory is ever replaced."""
    problem = foreign_content(world.store, path)
    if problem is not None:
        raise NotACheckpointError(path, problem, "Nothing else is replaced: choose another path.")


def refuse_if_full(world: World, options: Options, directory: str, nbytes: int) -> None:
    """Fails before the first byte where there is clearly no room.

    Raises:
        StorageError: with ENOSPC.
    """
    free = world.store.free_bytes(directory)
    if free is not None and free < nbytes and not options.compression:
        raise StorageError(
            "save",
            directory,
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            f"The state has {nbytes / 1e9:.3f} GB and {free / 1e9:.3f} GB are free: free "
            "space or keep fewer steps; nothing was written.",
        )


def restore(
    path: str | os.PathLike[str],
    target: Any = None,
    *,
    cast: bool = False,
    allow_missing: bool = False,
    allow_extra: bool = False,
    options: Options | None = None,
) -> Any:
    """Restores a pytree that jaxckpt or plain orbax saved; blocks until it is on the devices.

    Every process of the job must call it with like targets. What several processes need is read
    once and handed on, see ``Options.complete``.

    Args:
        path: the directory of the state, or of a step that holds one.
        target: a tree of arrays or ``jax.ShapeDtypeStruct`` with shardings, which says where each
            array goes; values of Python and numpy stand for themselves. None: numpy arrays in
            plain containers.
        cast: convert dtypes, and numbers between Python and arrays, where the target differs.
        allow_missing: keep the target's own leaf where the checkpoint has none.
        allow_extra: leave out stored leaves that the target lacks.

    Raises:
        CheckpointNotFoundError: there is nothing at the path.
        NotACheckpointError: it is something else.
        TreeMismatchError: the target does not fit; all places are listed, nothing was read.
        DamagedCheckpointError: bytes are not those that were written; none are returned.
        FormatVersionError: it was written by a newer jaxckpt.
        ProcessesDisagreeError, PeerFailedError, PeerMissingError, NotSharedError,
            CollectiveFailedError: in a job of several processes.
    """
    options = checked_options(options)
    world = local_world(default_coordinator(), require_direct=options.direct_io == "on")
    engine = Engine(options.writer_threads)
    found = checked_path(path)
    try:
        with world.coordinator.operation(f"restore of {found}") as operation:
            item = open_any(world, find_item(world.store, found))
            lenient = Leniency(cast, allow_missing, allow_extra)
            return restore_tree(world, options, engine, operation, item, target, lenient)
    finally:
        engine.close()


@contextlib.contextmanager
def _borrowed_pool(budget_bytes: int) -> Generator[HostPool]:
    """Memory that stays touched between calls of `save`; calls at the same time have their own.

    Two saves in one pool could each hold blocks that the other one needs.
    """
    with _shared_pool_lock:
        pool = _shared_pools.pop(budget_bytes, None) or HostPool(budget_bytes)
    try:
        yield pool
    finally:
        with _shared_pool_lock:
            _shared_pools.setdefault(budget_bytes, pool)
