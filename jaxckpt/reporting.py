"""The door to a run's journal: `report`."""

from __future__ import annotations

import os

from jaxckpt.errors import CheckpointNotFoundError, NotACheckpointError
from jaxckpt.ettr.account import account
from jaxckpt.ettr.records import JOURNAL_NAME, MAX_JOURNAL_BYTES, parse_journal
from jaxckpt.ettr.report import RunReport
from jaxckpt.io.store import join, read_file
from jaxckpt.io.world import World, local_world
from jaxckpt.places import checked_path


def report(run: str | os.PathLike[str], *, world: World | None = None) -> RunReport:
    """What a run's time went to: training, lost work, stalls, restores, restarts.

    Reads the run's journal and nothing else, while the run goes on too; needs neither jax nor a
    device. Any process may call it.

    Args:
        run: the directory of the run.
        world: where it lies; this machine's files by default.

    Raises:
        CheckpointNotFoundError: there is no such directory, or it has no journal.
        NotACheckpointError: what is there is no run's journal, or too large to be one.
        StorageError: it can not be read.
    """
    path = checked_path(run)
    store = (world or local_world()).store
    found = store.stat(path)
    if found is None:
        raise CheckpointNotFoundError(path)
    if not found.is_dir:
        raise NotACheckpointError(path, "it is a file", "Give the directory of a run.")
    file = join(path, JOURNAL_NAME)
    try:
        data = read_file(store, file, MAX_JOURNAL_BYTES, path)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(
            path,
            f"{path} has no {JOURNAL_NAME}: give the directory that a jaxckpt.Checkpointer "
            "saved to, with its journal on.",
        ) from error
    except ValueError as error:
        raise NotACheckpointError(file, str(error), "Give the directory of a run.") from error
    return account(parse_journal(data))
