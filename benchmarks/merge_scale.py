"""What the primary of a very large job merges: the databases of all processes, without their data.

Each process's index is made as a save makes it; data files have sizes and no bytes.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.trillion import DEVICES_PER_PROCESS, STATES, mesh_of
from jaxckpt._options import Options
from jaxckpt._types import LeafSpec
from jaxckpt.format.btree import ValueRef
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import Entry, build_tree
from jaxckpt.format.manifest import MANIFEST_NAME, encode_manifest
from jaxckpt.format.names import INDEX_FILE, data_file, process_dir
from jaxckpt.format.sidecar import FileRecord, Sidecar
from jaxckpt.format.zarr import CRC_BYTES, array_metadata, chunk_key, metadata_key
from jaxckpt.io.coordinator import Coordinator
from jaxckpt.io.store import Stat, join
from jaxckpt.io.world import World
from jaxckpt.layout.flatten import flatten
from jaxckpt.layout.placement import Placer
from jaxckpt.layout.save_plan import ArrayLeaf, SavePlan, plan_save
from jaxckpt.layout.write_plan import INLINE_BYTES
from jaxckpt.merging import EMPTY_KEY, Announcement, decode_announcement, with_crcs, write_root

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROUNDS = 3
ITEM, _UUID = "/item", bytes(16)


@dataclass(frozen=True)
class MergeRow:
    """One merge. Seconds are medians.

    Attributes:
        keys: of the merged index.
        seconds: from the announcements as they arrive to the item's last file.
        peak: the most memory that the process had, everything included.
    """

    state: str
    devices: int
    processes: int
    chunks: int
    keys: int
    seconds: float
    peak: int


@dataclass
class Files:
    """As much of a Store as the merge needs; data files are sizes."""

    small: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def stat(self, path: str) -> Stat | None:
        if path in self.small:
            return Stat(False, len(self.small[path]))
        return Stat(False, self.sizes[path]) if path in self.sizes else None

    def open(self, path: str, *, direct: bool, beneath: str = "") -> _Reader:
        del direct, beneath
        return _Reader(self.small[path])

    def create(self, path: str, *, direct: bool) -> _Writer:
        del direct
        return _Writer(self, path)

    def make_dir(self, path: str) -> None:
        del path

    def sync_dir(self, path: str) -> None:
        del path


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read_into(self, offset: int, buffers: Sequence[Buffer]) -> int:
        view = memoryview(buffers[0]).cast("B")
        part = self._data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


class _Writer:
    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path

    def write_at(self, offset: int, data: Buffer) -> None:
        assert offset == 0
        self._files.small[self._path] = bytes(data)

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Databases:
    """What all processes of a job have written, and said of it."""

    root: Any
    specs: list[LeafSpec]
    plan: SavePlan
    files: Files
    announced: list[bytes]


def measure_merge(state: str, devices: int) -> MergeRow:
    """Merges what all processes of a job would have written."""
    processes = devices // DEVICES_PER_PROCESS
    found = databases_of(STATES[state](mesh_of(devices)), processes)
    seconds = statistics.median(merge(found)[0] for _ in range(ROUNDS))
    chunks = found.plan.owners.size
    keys = chunks + len(found.specs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return MergeRow(state, devices, processes, chunks, keys, seconds, peak)


def databases_of(leaves: list[ArrayLeaf], processes: int) -> Databases:
    """Plans a state and makes the index of every process."""
    plan = plan_save(leaves, Options().chunk_bytes)
    root, specs = _described(leaves, plan)
    return Databases(root, specs, plan, *_written(plan, specs, processes))


def merge(databases: Databases) -> tuple[float, Files]:
    """The primary's part of a save; returns its seconds and the files of the item."""
    files = Files(dict(databases.files.small), databases.files.sizes)
    world = World(files, Coordinator(), lambda: 0, bytes)
    gc.collect()
    start = time.perf_counter()
    said = [decode_announcement(data) for data in databases.announced]
    specs = tuple(with_crcs(databases.specs, databases.plan, said))
    write_root(world, ITEM, Sidecar(databases.root, specs, {}, len(said), True, None), said)
    return time.perf_counter() - start, files


def _described(leaves: list[ArrayLeaf], plan: SavePlan) -> tuple[Any, list[LeafSpec]]:
    """The tree and its leaves, named as a training loop would."""
    groups = ("layers", "master", "mean", "variance")  # in the order in which a tree is walked
    per_group = -(-len(leaves) // len(groups))
    tree: dict[str, dict[str, int]] = {}
    for number in range(len(leaves)):
        group = tree.setdefault(groups[number // per_group], {})
        group[f"tensor_{number % per_group:05d}"] = number
    flat = flatten(tree)
    assert [number for _, number in flat.leaves] == list(range(len(leaves)))
    specs: list[LeafSpec] = []
    for path, number in flat.leaves:
        shape = tuple(leaves[number].partition.shape)
        name = ".".join(text for _, text in path)
        chunk = plan.chunk_shapes[leaves[number].number]
        specs.append(LeafSpec(name, path, "jax", shape, leaves[number].dtype, shape, chunk))
    return flat.root, specs


def _written(plan: SavePlan, specs: list[LeafSpec], processes: int) -> tuple[Files, list[bytes]]:
    """The databases of all processes, and what each says of its own."""
    files, announced = Files(), list[bytes]()
    for process in range(processes):
        entries, ends = _entries(plan, specs, process)
        if process == 0:
            entries += [(metadata_key(spec.name), _metadata(spec)) for spec in specs]
        entries.sort(key=lambda entry: entry[0])
        blob, root = build_tree(entries or [(EMPTY_KEY, b"1")], DataFile("", INDEX_FILE), 0)
        manifest = encode_manifest(_UUID, root, 0)
        records: dict[str, FileRecord] = {}
        home = process_dir(process)
        for number, end in enumerate(ends):
            records[f"{home}/{data_file(number)}"] = FileRecord(end)
            files.sizes[join(ITEM, home, data_file(number))] = end
        for name, data in ((INDEX_FILE, blob), (MANIFEST_NAME, manifest)):
            records[f"{home}/{name}"] = FileRecord.of(data)
            files.small[join(ITEM, home, name)] = data
        crcs = np.random.default_rng(process).integers(
            0, 1 << 32, int((plan.owners == process).sum()), np.uint32
        )
        announced.append(Announcement(records, max(1, len(entries)), crcs).encode())
    return files, announced


def _entries(plan: SavePlan, specs: list[LeafSpec], process: int) -> tuple[list[Entry], list[int]]:
    """A process's chunks, placed as a save places them, and the sizes of its data files."""
    placer = Placer(Options().data_file_bytes)
    entries: list[Entry] = []
    for chunk in plan.owned_by(process):
        key = chunk_key(specs[chunk.leaf].name, chunk.position)
        nbytes = chunk.nbytes + CRC_BYTES
        if chunk.nbytes <= INLINE_BYTES:
            entries.append((key, bytes(nbytes)))
            continue
        place = placer.place(nbytes)
        file = DataFile("", data_file(place.file))
        entries.append((key, ValueRef(file, place.offset, place.length)))
    return entries, placer.ends


def _metadata(spec: LeafSpec) -> bytes:
    return array_metadata(
        spec.stored_shape, spec.chunk_shape, spec.dtype, checksum=True, compression=None
    )
