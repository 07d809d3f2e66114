"""The primary's part of a save: from the databases of all processes to one item.

Nothing is believed that was not read back: each process says which files it wrote, with their
sizes and what its index looks like, and the root refers to what is found to be so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jaxckpt._types import ARRAY_KINDS, LeafSpec
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format import orbaxmeta
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.frame import FormatError
from jaxckpt.format.index import Entry, Index, build_tree, merge_entries, read_tree
from jaxckpt.format.limits import MAX_INDEX_BYTES
from jaxckpt.format.manifest import MANIFEST_NAME, Root, decode_manifest, encode_manifest
from jaxckpt.format.names import INDEX_FILE, process_dir
from jaxckpt.format.sidecar import SIDECAR_NAME, FileRecord, Sidecar, encode_sidecar
from jaxckpt.io.store import join, read_file, write_file
from jaxckpt.io.world import World
from jaxckpt.layout.save_plan import SavePlan
from jaxckpt.opened import check_files

EMPTY_KEY = b".jaxckpt"
"""The only key of a database that would have none."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a process says of its database.

    Attributes:
        files: by path relative to the item; index and manifest with their CRC-32.
        keys: how many there are in its index.
        crcs: crc32c of each of its chunks, in the order of the plan.
    """

    files: dict[str, FileRecord]
    keys: int
    crcs: NDArray[np.uint32]

    def encode(self) -> bytes:
        """As one line of JSON and the checksums."""
        files = {name: [record.size, record.crc] for name, record in self.files.items()}
        head = json.dumps({"files": files, "keys": self.keys}).encode()
        return head + b"\n" + self.crcs.astype("<u4").tobytes()


def decode_announcement(data: bytes) -> Announcement:
    """Reads what `Announcement.encode` wrote."""
    head, _, crcs = data.partition(b"\n")
    doc = json.loads(head)
    files = {name: FileRecord(size, crc) for name, (size, crc) in doc["files"].items()}
    return Announcement(files, doc["keys"], np.frombuffer(crcs, "<u4"))


def with_crcs(
    specs: Sequence[LeafSpec], plan: SavePlan, announced: Sequence[Announcement]
) -> list[LeafSpec]:
    """The leaves with the checksums of their chunks, which lie scattered over the processes.

    Args:
        specs: by the leaf numbers of the plan.
        announced: by process index.
    """
    crcs = np.zeros(len(plan.owners), "<u4")
    by_process = np.argsort(plan.owners, kind="stable")
    crcs[by_process] = np.concatenate([announcement.crcs for announcement in announced])
    found = list(specs)
    for number, spec in enumerate(specs):
        if number in plan.starts and spec.kind in ARRAY_KINDS:
            start = plan.starts[number]
            own = crcs[start : start + plan.chunk_count(number)]
            found[number] = replace(spec, crcs=own.tobytes())
    return found


def write_root(
    world: World, item: str, sidecar: Sidecar, announced: Sequence[Announcement]
) -> None:
    """Makes the item whole and durable: merged index, root manifest, orbax's files, sidecar.

    Args:
        sidecar: complete but for the files.
        announced: by process index; every process of the job.

    Raises:
        DamagedCheckpointError: a file is not there or not what was announced.
    """
    store, records = world.store, dict[str, FileRecord]()
    for announcement in announced:
        records.update(announcement.files)
    indexes = [
        _read_back(world, join(item, process_dir(process)), process_dir(process), announcement)
        for process, announcement in enumerate(announced)
    ]
    manifest = _root_manifest(world, item, indexes, records)
    leaves = sidecar.leaves
    extra = {
        MANIFEST_NAME: manifest,
        orbaxmeta.TREE_NAME: orbaxmeta.encode_tree(leaves),
        orbaxmeta.SHARDING_NAME: orbaxmeta.encode_shardings(leaves),
        orbaxmeta.STRINGS_NAME: orbaxmeta.encode_strings(leaves),
        **_array_metadatas(leaves),
    }
    store.make_dir(join(item, orbaxmeta.ARRAYS_DIR))
    for name, data in extra.items():
        write_file(store, join(item, name), data)
        records[name] = FileRecord.of(data)
    store.sync_dir(join(item, orbaxmeta.ARRAYS_DIR))
    whole = Sidecar(
        sidecar.tree,
        sidecar.leaves,
        records,
        sidecar.process_count,
        sidecar.checksum,
        sidecar.compression,
    )
    check_files(store, item, whole)
    write_file(store, join(item, SIDECAR_NAME), encode_sidecar(whole))
    store.sync_dir(item)


def _array_metadatas(leaves: Sequence[LeafSpec]) -> dict[str, bytes]:
    return {f"{orbaxmeta.ARRAYS_DIR}/process_0": orbaxmeta.encode_array_metadatas(leaves)}


def _read_back(world: World, home: str, name: str, announced: Announcement) -> tuple[Root, Index]:
    """A process's index as it lies on disk, held against what the process said."""
    store, path = world.store, join(home, MANIFEST_NAME)
    try:
        blob = read_file(store, join(home, INDEX_FILE), MAX_INDEX_BYTES)
        data = read_file(store, path, 1 << 20)
        _same(blob, announced, name, INDEX_FILE)
        _same(data, announced, name, MANIFEST_NAME)
        root = decode_manifest(data, path)
        index = read_tree(root, lambda span: blob[span.offset : span.end])
    except (ValueError, FileNotFoundError, KeyError) as error:
        raise DamagedCheckpointError(path, f"just written and read back: {error}") from error
    if len(index.keys) != announced.keys or root.location is None:
        raise DamagedCheckpointError(path, "just written and read back: keys are missing")
    return root, index


def _same(data: bytes, announced: Announcement, home: str, name: str) -> None:
    record = announced.files[f"{home}/{name}"]
    if record != FileRecord.of(data):
        raise FormatError(f"{home}/{name} is not what its process announced")


def _root_manifest(
    world: World,
    item: str,
    indexes: Sequence[tuple[Root, Index]],
    records: dict[str, FileRecord],
) -> bytes:
    """Refers to the one tree over all keys.

    With one process its own tree is the whole tree, so the root manifest points at it through the
    directory as base path and no node is written twice.
    """
    if len(indexes) == 1:
        root = indexes[0][0]
        assert root.location is not None
        place = root.location
        location = ValueRef(
            DataFile(process_dir(0) + "/", place.file.name), place.offset, place.length
        )
        moved = Root(root.height, location, root.num_keys, root.tree_bytes, root.indirect_bytes)
        return encode_manifest(world.random_bytes(16), moved, world.wall_ns())
    entries = merge_entries(
        [(process_dir(p) + "/", index) for p, (_, index) in enumerate(indexes)], EMPTY_KEY
    )
    root = _write_merged(world, item, entries, records)
    return encode_manifest(world.random_bytes(16), root, world.wall_ns())


def _write_merged(
    world: World, item: str, entries: list[Entry], records: dict[str, FileRecord]
) -> Root:
    store, path = world.store, join(item, INDEX_FILE)
    try:
        blob, root = build_tree(entries, DataFile("", INDEX_FILE), 0)
    except FormatError as error:
        raise DamagedCheckpointError(path, f"two processes wrote the same: {error}") from error
    store.make_dir(join(item, "d"))
    write_file(store, path, blob)
    store.sync_dir(join(item, "d"))
    if read_file(store, path, MAX_INDEX_BYTES) != blob:
        raise DamagedCheckpointError(path, "read back, it is not what was written")
    records[INDEX_FILE] = FileRecord.of(blob)
    return root
