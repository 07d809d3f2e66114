"""Publishing and removing directories so that a crash at any point leaves the old or the new.

What is assumed of the file system, and no more: bytes are durable after `sync` of the file, a
name after `sync_dir` of its directory; a rename is seen whole or not at all. The order:

1. a lease file, locked, then a hidden directory beside the final name; nobody lists it
2. the files, each synced; every new directory inside, bottom up, synced (the writers' part)
3. the hidden directory itself, synced
4. one rename that never replaces (or one exchange, when asked to replace)
5. the parent, synced: only now is the checkpoint durable
6. only then may the old one go: renamed to trash, parent synced, unlinked
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from jaxckpt.errors import StepExistsError, StorageError
from jaxckpt.format.names import (
    LEASE_SUFFIX,
    RANDOM_NAME_BYTES,
    parse_work_name,
    work_name,
)
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.store import Lock, join, name_of, parent_of, remove_tree
from jaxckpt.io.world import World


@dataclass(frozen=True, slots=True)
class Temporary:
    """A hidden directory that this process owns as long as it holds the lock."""

    path: str
    lock: Lock


def open_temporary(world: World, final: str) -> Temporary:
    """Makes a hidden directory beside ``final``, whose parent must exist."""
    parent, name = parent_of(final), name_of(final)
    path = join(parent, work_name("tmp", name, world.random_bytes(RANDOM_NAME_BYTES)))
    lock = world.store.lock(path + LEASE_SUFFIX, owner=True)
    if lock is None:
        raise StorageError("lock", path + LEASE_SUFFIX, OSError(errno.EEXIST, "taken"))
    try:
        world.store.make_dir(path)
    except BaseException:
        lock.release()
        raise
    return Temporary(path, lock)


def publish(world: World, temporary: Temporary, final: str, *, replace: bool) -> None:
    """Gives a complete hidden directory its final name, durably; then removes what it replaced.

    Takes the hidden directory over: if it can not be published it is removed, and once a name
    has changed nothing is removed before the parent is synced; `clean_leftovers` does it later.

    Raises:
        StepExistsError: the name is taken and ``replace`` is False; what is there is left.
    """
    store, parent = world.store, parent_of(final)
    old: str | None = None
    swapping = False
    try:
        store.sync_dir(temporary.path)
        swapping = replace and store.stat(final) is not None
        if swapping:
            old = _swap_in(world, temporary.path, final)
        else:
            store.rename(temporary.path, final)
    except Exception as error:
        if swapping:
            # A file system may report an error for what it has done; then the hidden name holds
            # the old one. The next `clean_leftovers` removes it, after a sync.
            temporary.lock.release()
            raise
        discard(world, temporary)
        if isinstance(error, StorageError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise StepExistsError(final) from error
        raise
    except BaseException:
        temporary.lock.release()  # nobody knows whether the names have changed: touch nothing
        raise
    try:
        store.sync_dir(parent)
        if old is not None:
            retire(world, old, name_of(final))  # under the lease, or another process might clean it
    finally:
        temporary.lock.release()


def _swap_in(world: World, path: str, final: str) -> str:
    """Puts ``path`` in the place of ``final``; returns where the old one is now."""
    store = world.store
    if store.exchange(path, final):
        return path
    # Without an exchange there is a moment without the final name; `clean_leftovers` gives the
    # old one its name back if a crash falls into it. Its name there tells whose lease to ask.
    aside = join(parent_of(path), name_of(path).replace("-tmp-", "-old-", 1))
    store.rename(final, aside)
    try:
        store.rename(path, final)
    except Exception:
        store.rename(aside, final)
        raise
    return aside


def discard(world: World, temporary: Temporary) -> None:
    """Removes a hidden directory that will not be published."""
    try:
        remove_tree(world.store, temporary.path)
    finally:
        temporary.lock.release()


def give_up(world: World, operation: Operation, temporary: Temporary, error: BaseException) -> None:
    """Discards, once no process writes there any more; else a later `clean_leftovers` does it.

    Blocks for a bounded time.
    """
    operation.fail(error)
    if operation.wait_until_left():
        discard(world, temporary)
    else:
        temporary.lock.release()


def retire(world: World, path: str, name: str | None = None) -> None:
    """Removes a directory: out of sight by a rename, durably, then unlinked."""
    parent = parent_of(path)
    hidden = work_name("trash", name or name_of(path), world.random_bytes(RANDOM_NAME_BYTES))
    trash = join(parent, hidden)
    world.store.rename(path, trash)
    world.store.sync_dir(parent)
    remove_tree(world.store, trash)


def clean_leftovers(world: World, parent: str, only: str | None = None) -> list[str]:
    """Removes what killed processes left in a directory, never what a live one is writing.

    Args:
        only: look only at leftovers of this name; None for all.

    Returns:
        The paths that were removed or given their name back.
    """
    store = world.store
    names = set(store.list_dir(parent))
    work = {found: parse_work_name(found.removesuffix(LEASE_SUFFIX)) for found in sorted(names)}
    mine = [(f, p) for f, p in work.items() if p is not None and only in (None, p[1])]
    if mine:
        # A rename that a killed process made may not be durable: what it made superfluous must
        # not go before it is.
        store.sync_dir(parent)
    done: list[str] = []
    for found, (kind, name) in mine:
        path = join(parent, found)
        if kind == "trash":
            remove_tree(store, path)
            done.append(path)
            continue
        bare = found.removesuffix(LEASE_SUFFIX)
        lease = bare.replace("-old-", "-tmp-", 1) if kind == "old" else bare
        lock = store.lock(join(parent, lease + LEASE_SUFFIX), owner=False)
        if lock is None:
            continue
        if kind == "old" and store.stat(join(parent, name)) is None:
            store.rename(path, join(parent, name))
            store.sync_dir(parent)
        else:
            remove_tree(store, join(parent, bare))
        lock.release()
        done.append(path)
    return done
