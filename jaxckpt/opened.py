"""Opening an item that jaxckpt wrote: everything checked before anything is allocated for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from jaxckpt._calm import calm
from jaxckpt._types import ARRAY_KINDS
from jaxckpt.errors import DamagedCheckpointError, FormatVersionError, NotACheckpointError
from jaxckpt.format.frame import FormatError
from jaxckpt.format.index import Index, read_tree
from jaxckpt.format.limits import MAX_NODE_BYTES, MAX_SIDECAR_BYTES
from jaxckpt.format.manifest import MANIFEST_NAME, decode_manifest
from jaxckpt.format.sidecar import SIDECAR_NAME, FileRecord, Sidecar, chunk_count, decode_sidecar
from jaxckpt.io.spans import read_span
from jaxckpt.io.store import Store, join, read_file


@dataclass(frozen=True, slots=True)
class OpenedItem:
    """An item directory with its decoded sidecar and index.

    Attributes:
        identity: no two saves have the same, a copy has.
    """

    path: str
    sidecar: Sidecar
    index: Index
    identity: str


def has_sidecar(store: Store, path: str) -> bool:
    """Whether jaxckpt wrote the item."""
    found = store.stat(join(path, SIDECAR_NAME))
    return found is not None and not found.is_dir


def read_sidecar(store: Store, path: str) -> Sidecar:
    """The item's sidecar, checked; its other files are not looked at."""
    name = join(path, SIDECAR_NAME)
    try:
        return decode_sidecar(read_file(store, name, MAX_SIDECAR_BYTES, path), name)
    except FileNotFoundError as error:
        raise NotACheckpointError(
            path, f"it has no {SIDECAR_NAME}", "Give the directory of a saved state."
        ) from error
    except FormatVersionError:
        raise
    except ValueError as error:
        raise damaged(name, error) from error


def check_files(store: Store, path: str, sidecar: Sidecar) -> None:
    """Every file is there with its size. Bytes are checked when they are read.

    Raises:
        DamagedCheckpointError: names the first that is not.
    """
    for name, record in sidecar.files.items():
        file = join(path, name)
        found = store.stat(file)
        if found is None or found.is_dir:
            raise DamagedCheckpointError(file, "the file is missing")
        if found.size != record.size:
            raise DamagedCheckpointError(
                file, f"it has {found.size} bytes; {record.size} were written"
            )


@calm
def open_item(store: Store, path: str) -> OpenedItem:
    """Reads and checks the sidecar, the root manifest and the whole index.

    Raises:
        FormatVersionError: a newer format.
        DamagedCheckpointError: a file is missing, has another size or breaks the format.
    """
    sidecar = read_sidecar(store, path)
    check_files(store, path, sidecar)
    name = join(path, MANIFEST_NAME)
    try:
        data = read_file(store, name, MAX_NODE_BYTES, path)
        record = sidecar.files.get(MANIFEST_NAME)
        if record != FileRecord.of(data):
            raise FormatError(f"{name} is not the one that the sidecar names")
        index = read_tree(decode_manifest(data, name), lambda span: read_span(store, path, span))
        _check_spans(index, sidecar)
        _check_leaves(index, sidecar)
    except FormatError as error:
        raise damaged(name, error) from error
    return OpenedItem(path, sidecar, index, hashlib.sha256(data).hexdigest())


def damaged(path: str, error: Exception) -> DamagedCheckpointError:
    """The error of a file whose bytes break the format."""
    text = str(error).removeprefix(path).strip(" :")
    return DamagedCheckpointError(path, text)


def _check_leaves(index: Index, sidecar: Sidecar) -> None:
    """No leaf claims more chunks than there are keys, and each chunk has its checksum."""
    for leaf in sidecar.leaves:
        if leaf.kind not in ARRAY_KINDS:
            continue
        count = chunk_count(leaf.stored_shape, leaf.chunk_shape)
        if count > len(index.keys):
            raise FormatError(f"leaf '{leaf.name}' claims {count} chunks; the index has fewer keys")
        if sidecar.checksum and len(leaf.crcs) != 4 * count:
            raise FormatError(f"leaf '{leaf.name}' lacks the checksums of its chunks")


def _check_spans(index: Index, sidecar: Sidecar) -> None:
    """Values lie inside files that the sidecar names and do not overlap."""
    outside = np.flatnonzero(index.file_ids >= 0)
    if not len(outside):
        return
    sizes = np.zeros(len(index.files), np.int64)
    for i, file in enumerate(index.files):
        record = sidecar.files.get(file)
        if record is None:
            raise FormatError(
                f"the index refers to {file[:200]!r}, which the sidecar does not name"
            )
        sizes[i] = record.size
    ids, starts = index.file_ids[outside], index.offsets[outside]
    ends = starts + index.lengths[outside]
    late = np.flatnonzero(ends > sizes[ids])
    if len(late):
        row = int(outside[late[0]])
        raise FormatError(
            f"key {index.keys[row][:200]!r} ends at {int(ends[late[0]])} of "
            f"{index.files[int(ids[late[0]])]}, which has {int(sizes[ids[late[0]]])} bytes"
        )
    order = np.lexsort((starts, ids))
    same = ids[order][1:] == ids[order][:-1]
    clash = np.flatnonzero(same & (starts[order][1:] < ends[order][:-1]))
    if len(clash):
        row = int(outside[order[clash[0] + 1]])
        raise FormatError(f"key {index.keys[row][:200]!r} overlaps another value")
