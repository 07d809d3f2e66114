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

    Raises:
        StepExistsError: the name is taken and ``replace`` is False; both are left as they are.
    """
    store, parent = world.store, parent_of(final)
    store.sync_dir(temporary.path)
    old: str | None = None
    if replace and store.stat(final) is not None:
        old = _swap_in(world, temporary.path, final)
    else:
        try:
            store.rename(temporary.path, final)
        except StorageError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise StepExistsError(final) from error
            raise
    store.sync_dir(parent)
    temporary.lock.release()
    if old is not None:
        retire(world, old, name_of(final))


def _swap_in(world: World, path: str, final: str) -> str:
    """Puts ``path`` in the place of ``final``; returns where the old one is now."""
    store = world.store
    if store.exchange(path, final):
        return path
    # Without an exchange there is a moment without the final name; `clean_leftovers` gives the
    # old one its name back if a crash falls into it.
    aside = work_name("old", name_of(final), world.random_bytes(RANDOM_NAME_BYTES))
    aside_path = join(parent_of(final), aside)
    store.rename(final, aside_path)
    store.rename(path, final)
    return aside_path


def discard(world: World, temporary: Temporary) -> None:
    """Removes a hidden directory that will not be published."""
    try:
        remove_tree(world.store, temporary.path)
    finally:
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
    done: list[str] = []
    for found in sorted(names):
        bare = found.removesuffix(LEASE_SUFFIX)
        parsed = parse_work_name(bare)
        if parsed is None or (only is not None and parsed[1] != only):
            continue
        kind, name = parsed
        path = join(parent, found)
        if kind == "old" and name not in names:
            store.rename(path, join(parent, name))
            store.sync_dir(parent)
            names.add(name)
            done.append(path)
        elif kind == "tmp":
            lease = join(parent, bare + LEASE_SUFFIX)
            lock = store.lock(lease, owner=False)
            if lock is not None:
                remove_tree(store, join(parent, bare))
                lock.release()
                done.append(path)
        else:
            remove_tree(store, path)
            done.append(path)
    return done
