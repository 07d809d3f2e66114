"""The first half of a save, the same on every process: tree, leaves, and who writes which chunk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import crc32c
import jax
import numpy as np

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt._types import LeafSpec, Processes
from jaxckpt.agreeing import Fingerprint
from jaxckpt.device import transfer
from jaxckpt.format.tree import TreeNode
from jaxckpt.format.values import text_value
from jaxckpt.format.zarr import CRC_BYTES
from jaxckpt.layout.flatten import flatten
from jaxckpt.layout.leaves import Described, describe_leaf, short_text
from jaxckpt.layout.partition import host_partition
from jaxckpt.layout.save_plan import ArrayLeaf, SavePlan, plan_save
from jaxckpt.layout.write_plan import WritePlan, plan_writes


@dataclass(frozen=True, slots=True)
class SavingLeaf:
    """A leaf of the state, classified and named; its array is in ``StatePlan.sources``."""

    spec: LeafSpec
    described: Described


@dataclass(frozen=True, slots=True)
class StatePlan:
    """All that a save does, decided before any byte is written.

    Attributes:
        sources: the arrays, by number of the leaf, None where there is none; nobody keeps them once
            they are copied.
        writes: what this process writes.
        viewable: numbers of the leaves on CPU devices, as they are in the state.
        temporary_bytes: the most memory that copies of single chunks take.
        nbytes: what all processes write.
    """

    root: TreeNode
    leaves: list[SavingLeaf]
    sources: list[Any]
    plan: SavePlan
    writes: WritePlan
    viewable: tuple[int, ...]
    temporary_bytes: int
    nbytes: int


@calm
def plan_state(state: Any, options: Options, processes: Processes) -> StatePlan:
    """Names and classifies the leaves of a state and plans its chunks, for all processes.

    Raises:
        UnsupportedLeafError: a leaf can not be saved.
    """
    flat = flatten(state)
    described = [describe_leaf(path, value, processes) for path, value in flat.leaves]
    arrays: list[ArrayLeaf] = []
    for number, leaf in enumerate(described):
        if leaf.source is not None:
            part = leaf.partition or host_partition(())
            arrays.append(ArrayLeaf(number, part, leaf.dtype))
    plan = plan_save(arrays, options.chunk_bytes)
    leaves: list[SavingLeaf] = []
    for number, ((path, _), leaf) in enumerate(zip(flat.leaves, described, strict=True)):
        name = ".".join(text for _, text in path)
        stored = leaf.source.shape if leaf.source is not None else ()
        spec = LeafSpec(
            name,
            path,
            leaf.kind,
            leaf.shape,
            leaf.dtype,
            tuple(stored),
            plan.chunk_shapes.get(number, ()),
            leaf.impl,
            leaf.value,
            leaf.sharding,
        )
        leaves.append(SavingLeaf(spec, dataclasses.replace(leaf, source=None)))
    writes = plan_writes(
        plan,
        processes.index,
        [leaf.spec.name for leaf in leaves],
        {number for number, leaf in enumerate(described) if _is_bare(leaf.source)},
        {number for number, leaf in enumerate(described) if _is_far(leaf.source)},
        data_file_bytes=options.data_file_bytes,
        footer_bytes=CRC_BYTES if options.checksum else 0,
        compressed=options.compression is not None,
    )
    sources = [leaf.source for leaf in described]
    compressed = options.compression is not None
    temporary = _temporary_bytes(
        sources, writes, options.memory_budget_bytes, compressed=compressed
    )
    viewable = tuple(
        number
        for number, (leaf, (_, x)) in enumerate(zip(described, flat.leaves, strict=True))
        if leaf.kind == "jax" and leaf.source is x and not _is_far(x)
    )
    return StatePlan(flat.root, leaves, sources, plan, writes, viewable, temporary, plan.nbytes)


def _is_bare(source: Any) -> bool:
    """Whether an array is one piece of this host's memory that can be looked at as it is."""
    if not isinstance(source, jax.Array) or len(source.sharding.device_set) > 1:
        return False
    return not _is_far(source)


def _is_far(source: Any) -> bool:
    if not isinstance(source, jax.Array):
        return False
    return transfer.is_far(next(iter(source.sharding.device_set)))


def _temporary_bytes(
    sources: list[Any], writes: WritePlan, budget_bytes: int, *, compressed: bool
) -> int:
    """What temporary copies of chunks take: one compressed or made contiguous, one padded, and
    those on their way from accelerators.
    """
    copies = 2 if compressed else 1
    needed = padded = 0
    for write in writes.writes:
        chunk = write.chunk
        source = sources[chunk.leaf]
        whole = chunk.box == chunk.region
        row_wise = whole or chunk.box.shape[1:] == chunk.region.shape[1:]
        if compressed or not row_wise or not is_contiguous(source):
            needed = max(needed, copies * chunk.nbytes)
        if write.uneven:
            padded = max(padded, chunk.nbytes)
    largest = max((w.chunk.nbytes for w in writes.writes if w.far), default=0)
    arriving = min(writes.far_bytes, max(largest, transfer_limit(budget_bytes)))
    return needed + padded + arriving


def transfer_limit(budget_bytes: int) -> int:
    """How much may be on its way from accelerators at once."""
    return min(transfer.MOST_BYTES, budget_bytes // 4)


def is_contiguous(source: Any) -> bool:
    """Whether the elements lie in C order: of numpy arrays; those of devices do or are copied."""
    return not isinstance(source, np.ndarray) or source.flags.c_contiguous


def keep_host_values(state: StatePlan) -> None:
    """Copies what lies in numpy arrays: the caller may change them before a lazy save copies."""
    for number, source in enumerate(state.sources):
        if isinstance(source, np.ndarray):
            state.sources[number] = source.copy()


def fingerprint(
    state: StatePlan, options: Options, items: Mapping[str, bytes] | None = None
) -> Fingerprint:
    """What must be the same on every process: plan, format, and values that each has a copy of.

    Args:
        items: JSON that is saved beside the state.
    """
    form = f"checksum={options.checksum}, compression={options.compression}"
    leaves: list[tuple[str, str, str | None, str | None]] = [("(the options)", form, None, None)]
    for name, data in (items or {}).items():
        value = f"crc32c {crc32c.crc32c(data):08x}"
        leaves.append((f"(the item '{name}')", f"{len(data)} bytes", None, value))
    for leaf, source in zip(state.leaves, state.sources, strict=True):
        spec = leaf.spec
        if spec.dtype and leaf.described.partition is not None:
            what = f"{spec.impl or spec.dtype}{list(spec.shape)}"
        else:
            what = f"a Python {spec.kind}"
        sharding = None if spec.sharding is None else short_text(spec.sharding)
        leaves.append((spec.name, what, sharding, _host_value(leaf, source)))
    total = hashlib.sha256(state.plan.digest())
    total.update(json.dumps(leaves).encode())
    return Fingerprint(total.hexdigest(), leaves)


def _host_value(leaf: SavingLeaf, source: Any) -> str | None:
    """Text that tells values apart of which every process has its own copy; one is stored."""
    spec = leaf.spec
    if isinstance(source, jax.Array) and spec.sharding is None:
        holders = {d.process_index for d in source.sharding.device_set}
        return f"one on devices of process {min(holders)} alone" if len(holders) == 1 else None
    if spec.kind in ("float", "complex"):
        return f"{text_value(spec)!r} (bits {spec.value})"
    if not isinstance(source, np.ndarray) or leaf.described.partition is None:
        return spec.value
    data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    return f"crc32c {crc32c.crc32c(data.data):08x}"
