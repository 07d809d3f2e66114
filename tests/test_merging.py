"""The primary's part with up to 1,024 hosts, in one thread and without any device."""

from __future__ import annotations

from typing import Any

import crc32c
import numpy as np
import pytest
from conftest import world_of

from jaxckpt import Options
from jaxckpt._types import LeafSpec
from jaxckpt.errors import DamagedCheckpointError
from jaxckpt.format.datafiles import DataFile
from jaxckpt.format.index import build_tree
from jaxckpt.format.manifest import MANIFEST_NAME, encode_manifest
from jaxckpt.format.names import INDEX_FILE, process_dir
from jaxckpt.format.sidecar import FileRecord, Sidecar
from jaxckpt.format.tree import TreeNode
from jaxckpt.format.zarr import array_metadata, chunk_key, metadata_key
from jaxckpt.io.engine import Engine
from jaxckpt.io.store import join, make_dirs, write_file
from jaxckpt.layout.abstract_mesh import device_mesh, mesh_partition
from jaxckpt.layout.flatten import flatten
from jaxckpt.layout.save_plan import ArrayLeaf, SavePlan, plan_save
from jaxckpt.merging import EMPTY_KEY, Announcement, decode_announcement, write_root
from jaxckpt.restoring import Leniency, open_any, restore_tree
from jaxckpt.testing.memory_store import MemoryStore

ITEM = "/run/item"
NAMES = ("all", "split", "table")


class Hosts:
    """A state on a mesh of virtual hosts, each of which writes its database into memory."""

    def __init__(self, count: int) -> None:
        self.store, self.count = MemoryStore(), count
        self.world = world_of(self.store)
        mesh = device_mesh({"data": 4, "model": count}, devices_per_process=4)
        rng = np.random.default_rng(count)
        self.values = {
            "all": rng.random((64, 48), np.float32),
            "split": rng.random((4 * count, 16), np.float32),
            "table": rng.random((2 * count, 8), np.float32),
        }
        specs: dict[str, Any] = {
            "all": (),
            "split": (("data", "model"),),
            "table": ("model", None),
        }
        self.leaves = [
            ArrayLeaf(i, mesh_partition(mesh, specs[name], self.values[name].shape), "float32")
            for i, name in enumerate(NAMES)
        ]
        self.plan: SavePlan = plan_save(self.leaves, 2048)

    def write(self, process: int) -> Announcement:
        home = join(ITEM, process_dir(process))
        make_dirs(self.store, join(home, "d"))
        entries: list[Any] = []
        crcs: list[int] = []
        for chunk in self.plan.owned_by(process):
            whole = np.zeros(self.plan.chunk_shapes[chunk.leaf], np.float32)
            value = self.values[NAMES[chunk.leaf]]
            part = value[
                tuple(slice(a, b) for a, b in zip(chunk.box.start, chunk.box.stop, strict=True))
            ]
            whole[tuple(map(slice, part.shape))] = part
            crcs.append(crc32c.crc32c(whole.tobytes()))
            data = whole.tobytes() + crcs[-1].to_bytes(4, "little")
            entries.append((chunk_key(NAMES[chunk.leaf], chunk.position), data))
        if process == 0:
            for leaf in self.leaves:
                shape = self.values[NAMES[leaf.number]].shape
                about = array_metadata(
                    shape,
                    self.plan.chunk_shapes[leaf.number],
                    "float32",
                    checksum=True,
                    compression=None,
                )
                entries.append((metadata_key(NAMES[leaf.number]), about))
        entries.sort(key=lambda e: e[0])
        blob, root = build_tree(entries or [(EMPTY_KEY, b"1")], DataFile("", INDEX_FILE), 0)
        manifest = encode_manifest(bytes(16), root, 1)
        files = {}
        for name, data in ((INDEX_FILE, blob), (MANIFEST_NAME, manifest)):
            write_file(self.store, join(home, name), data)
            path = f"{process_dir(process)}/{name}"
            files[path] = FileRecord.of(data)
        own = Announcement(files, max(1, len(entries)), np.array(crcs, np.uint32))
        return decode_announcement(own.encode())

    def sidecar(self, announced: list[Announcement]) -> Sidecar:
        crcs = np.zeros(len(self.plan.owners), "<u4")
        for process, own in enumerate(announced):
            crcs[self.plan.owners == process] = own.crcs
        specs = []
        for i, name in enumerate(NAMES):
            start = self.plan.starts[i]
            own = crcs[start : start + self.plan.chunk_count(i)].tobytes()
            shape = self.values[name].shape
            specs.append(
                LeafSpec(
                    name,
                    (("key", name),),
                    "jax",
                    shape,
                    "float32",
                    shape,
                    self.plan.chunk_shapes[i],
                    crcs=own,
                )
            )
        tree: TreeNode = flatten(self.values).root
        return Sidecar(tree, tuple(specs), {}, self.count, True, None)


@pytest.mark.parametrize("count", [2, 37, 1024])
def test_databases_of_many_hosts_become_one_checkpoint(count: int) -> None:
    hosts = Hosts(count)
    announced = [hosts.write(process) for process in range(count)]
    loads = [hosts.plan.process_bytes.get(p, 0) for p in range(count)]
    assert min(loads) > 0
    write_root(hosts.world, ITEM, hosts.sidecar(announced), announced)
    engine = Engine(1)
    item = open_any(hosts.world, ITEM)
    found = restore_tree(
        hosts.world,
        Options(memory_budget_bytes=16 << 20),
        engine,
        hosts.world.coordinator.operation("restore"),
        item,
        None,
        Leniency(),
    )
    engine.close()
    for name, value in hosts.values.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.fixture
def few() -> tuple[Hosts, list[Announcement]]:
    hosts = Hosts(4)
    return hosts, [hosts.write(process) for process in range(4)]


def test_a_database_that_is_gone_is_noticed(few: tuple[Hosts, list[Announcement]]) -> None:
    hosts, announced = few
    hosts.store.remove_file(join(ITEM, process_dir(2), INDEX_FILE))
    with pytest.raises(DamagedCheckpointError, match="process_2"):
        write_root(hosts.world, ITEM, hosts.sidecar(announced), announced)
    assert "jaxckpt.json" not in hosts.store.list_dir(ITEM)


@pytest.mark.parametrize("name", [INDEX_FILE, MANIFEST_NAME])
def test_a_database_that_is_another_one_than_announced_is_noticed(
    few: tuple[Hosts, list[Announcement]], name: str
) -> None:
    hosts, announced = few
    path = join(ITEM, process_dir(3), name)
    reader = hosts.store.open(path, direct=False)
    data = bytearray(reader.size)
    reader.read_into(0, [data])
    data[-5] ^= 1
    hosts.store.remove_file(path)
    write_file(hosts.store, path, bytes(data))
    with pytest.raises(DamagedCheckpointError, match="not what its process announced"):
        write_root(hosts.world, ITEM, hosts.sidecar(announced), announced)
    assert "jaxckpt.json" not in hosts.store.list_dir(ITEM)


def test_a_data_file_of_another_size_is_noticed(few: tuple[Hosts, list[Announcement]]) -> None:
    hosts, announced = few
    name = f"{process_dir(1)}/d/data-00000"
    write_file(hosts.store, join(ITEM, name), bytes(8192))
    announced[1].files[name] = FileRecord(4096)
    with pytest.raises(DamagedCheckpointError, match="8192 bytes; 4096 were written"):
        write_root(hosts.world, ITEM, hosts.sidecar(announced), announced)
    assert "jaxckpt.json" not in hosts.store.list_dir(ITEM)


def test_a_chunk_that_two_processes_wrote_is_noticed(
    few: tuple[Hosts, list[Announcement]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, announced = few
    theirs = hosts.plan.owned_by(1)
    hosts.store = MemoryStore()
    hosts.world = world_of(hosts.store)
    real = type(hosts.plan).owned_by
    monkeypatch.setattr(
        type(hosts.plan), "owned_by", lambda self, p: real(self, p) + (theirs[:1] if p == 2 else [])
    )
    again = [hosts.write(process) for process in range(4)]
    with pytest.raises(DamagedCheckpointError, match="two processes wrote the same"):
        write_root(hosts.world, ITEM, hosts.sidecar(announced), again)
    assert "jaxckpt.json" not in hosts.store.list_dir(ITEM)
