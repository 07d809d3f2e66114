"""The line of a restore: open, check, match the target, plan, read once, check, build the tree."""

from __future__ import annotations

import hashlib
import json
import math
import queue
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt._types import Box, LeafSpec, Processes
from jaxckpt.agreeing import Fingerprint, agree
from jaxckpt.device.memory import regions
from jaxckpt.device.place import build_result, needed_boxes, needing_processes, wanted_sharding_text
from jaxckpt.errors import DamagedCheckpointError, NotSharedError, TreeMismatchError
from jaxckpt.foreign import ForeignItem, open_foreign
from jaxckpt.format.dtypes import DTYPES
from jaxckpt.format.tree import TreeNode, build
from jaxckpt.format.values import text_value
from jaxckpt.io.chunk_reader import ChunkReader, Task
from jaxckpt.io.chunk_sink import ChunkSink
from jaxckpt.io.coordinator import Operation
from jaxckpt.io.engine import Engine, Job
from jaxckpt.io.progress import Tally
from jaxckpt.io.world import World
from jaxckpt.layout.flatten import flatten_target
from jaxckpt.layout.match import Wanted, match_target, wanted_without_target
from jaxckpt.layout.needing import Needing
from jaxckpt.layout.restore_plan import (
    BadChunkError,
    Slot,
    check_lengths,
    plan_reads,
)
from jaxckpt.opened import OpenedItem, has_sidecar, open_item
from jaxckpt.sharing import Sharing

_READ_SECS = 3600.0  # how long a process waits for one that has more to read


@dataclass(frozen=True, slots=True)
class Leniency:
    """What a restore may do beyond an exact match.

    Attributes:
        cast: convert dtypes, and numbers between Python and arrays.
        allow_missing: keep the target's own leaf where the checkpoint has none.
        allow_extra: leave out stored leaves that the target lacks.
    """

    cast: bool = False
    allow_missing: bool = False
    allow_extra: bool = False


def open_any(world: World, path: str) -> OpenedItem | ForeignItem:
    """Opens an item of jaxckpt's, or one that stock orbax wrote."""
    if has_sidecar(world.store, path):
        return open_item(world.store, path)
    return open_foreign(world.store, path)


@calm
def restore_tree(
    world: World,
    options: Options,
    engine: Engine,
    operation: Operation,
    item: OpenedItem | ForeignItem,
    target: Any,
    lenient: Leniency,
) -> Any:
    """Reads an opened item. Every process must call it.

    Args:
        target: a tree of arrays, ``ShapeDtypeStruct`` with shardings, or values; None for numpy
            arrays in plain containers.
    """
    root, leaves = _tree_of(item)
    if target is None:
        values = _read(
            world, options, engine, operation, item, leaves, wanted_without_target(leaves)
        )
        return build(root, values)
    flat = flatten_target(target)
    wanted = match_target(
        item.path,
        leaves,
        flat.leaves,
        cast=lenient.cast,
        allow_missing=lenient.allow_missing,
        allow_extra=lenient.allow_extra,
    )
    values = _read(world, options, engine, operation, item, leaves, wanted)
    # Kept leaves come from the target as they are, so an empty container keeps its type.
    kept = [o if w.kind == "keep" else v for o, w, v in zip(flat.own, wanted, values, strict=True)]
    return jax.tree_util.tree_unflatten(flat.treedef, kept)


def _tree_of(item: OpenedItem | ForeignItem) -> tuple[TreeNode, Sequence[LeafSpec]]:
    if isinstance(item, ForeignItem):
        return item.tree, item.leaves
    return item.sidecar.tree, item.sidecar.leaves


def _read(
    world: World,
    options: Options,
    engine: Engine,
    operation: Operation,
    item: OpenedItem | ForeignItem,
    leaves: Sequence[LeafSpec],
    wanted: Sequence[Wanted],
) -> list[Any]:
    """The values of all wanted leaves, in their order."""
    values = [text_value(w.spec) if w.kind == "value" and w.spec else None for w in wanted]
    arrays = _pending(item.path, leaves, wanted, world.coordinator.processes)
    if not operation.alone:
        own = item.identity if isinstance(item, OpenedItem) else ""
        if agree(operation, _fingerprint(item.path, wanted, options), own) != own:
            problem = "the checkpoint that process 0 sees"
            raise NotSharedError(item.path, operation.process_index, problem)
    total = sum(pending.nbytes for pending in arrays)
    with world.tally(operation.what, total, shown=options.progress) as tally:
        for number, wave in enumerate(_waves(arrays, options.memory_budget_bytes)):
            if number:
                operation.meet("next part", timeout_secs=_READ_SECS)
            if isinstance(item, ForeignItem):
                _read_foreign(item, wave, values, tally)
            else:
                _read_own(world, options, engine, operation, item, wave, values, tally)
    operation.meet("restored", timeout_secs=_READ_SECS)
    return values


def _pending(
    path: str, leaves: Sequence[LeafSpec], wanted: Sequence[Wanted], processes: Processes
) -> list[_Pending]:
    """The results that need bytes, and which."""
    numbers = {leaf.path: i for i, leaf in enumerate(leaves)}
    arrays: list[_Pending] = []
    problems: list[str] = []
    for i, want in enumerate(wanted):
        if want.kind in ("value", "keep"):
            continue
        assert want.spec is not None
        try:
            boxes = needed_boxes(want)
        except (ValueError, NotImplementedError, AttributeError) as error:
            problems.append(f"{want.spec.name}: its sharding does not fit: {error}")
            continue
        needing = needing_processes(want, processes)
        arrays.append(_Pending(i, numbers[want.spec.path], want, boxes, needing))
    if problems:
        raise TreeMismatchError(path, problems)
    return arrays


def _fingerprint(path: str, wanted: Sequence[Wanted], options: Options) -> Fingerprint:
    """What all processes must want alike, or they would wait for one another in collectives."""
    way = (
        f"complete={options.complete!r}, gather_bytes={options.gather_bytes}, "
        f"memory_budget_bytes={options.memory_budget_bytes}"
    )
    leaves: list[tuple[str, str, str | None, str | None]] = [("(the options)", way, None, None)]
    for want in wanted:
        if want.spec is not None:
            what = f"{want.kind} {want.dtype}{list(want.spec.stored_shape)}"
            leaves.append((want.spec.name, what, wanted_sharding_text(want), None))
    digest = hashlib.sha256(json.dumps([path, leaves]).encode()).hexdigest()
    return Fingerprint(digest, leaves)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A result that needs bytes: its place among the results, leaf number and regions.

    Attributes:
        boxes: what this process needs of it.
        needing: what all processes need of it.
    """

    result: int
    leaf: int
    want: Wanted
    boxes: list[Box]
    needing: Needing

    @property
    def nbytes(self) -> int:
        """Bytes of the regions."""
        assert self.want.spec is not None
        elements = sum(math.prod(box.shape) for box in self.boxes)
        return elements * DTYPES[self.want.spec.dtype].itemsize


def _waves(arrays: list[_Pending], budget_bytes: int) -> Iterator[list[_Pending]]:
    """Everything at once where host memory is the result itself; else parts within the budget."""
    wave: list[_Pending] = []
    held = 0
    for pending in arrays:
        spec = pending.want.spec
        assert spec is not None
        size = 0
        if _leaves_host(pending.want):
            # What the process that needs most needs: the waves are the same on all.
            size = pending.needing.most_elements() * DTYPES[spec.dtype].itemsize
        if wave and held + size > budget_bytes:
            yield wave
            wave, held = [], 0
        wave.append(pending)
        held += size
    if wave:
        yield wave


def _leaves_host(want: Wanted) -> bool:
    if want.kind not in ("jax", "prng"):
        return False
    if want.sharding is None:
        return jax.default_backend() != "cpu"
    return any(d.platform != "cpu" for d in want.sharding.device_set)


def _read_own(
    world: World,
    options: Options,
    engine: Engine,
    operation: Operation,
    item: OpenedItem,
    wave: list[_Pending],
    values: list[Any],
    tally: Tally,
) -> None:
    slots = [Slot(pending.leaf, box) for pending in wave for box in pending.boxes]
    sidecar = item.sidecar
    try:
        reads = plan_reads(sidecar.leaves, slots, item.index.find)
        check_lengths(sidecar.leaves, reads, sidecar.checksum, sidecar.compression)
    except BadChunkError as error:
        raise DamagedCheckpointError(item.path, str(error), leaf=error.leaf) from error
    # Only now is it known that the bytes are there for which memory is taken.
    memory: list[np.ndarray] = []
    for pending in wave:
        memory += regions(pending.boxes, DTYPES[sidecar.leaves[pending.leaf].dtype])
    sink = ChunkSink(
        item.path,
        sidecar.leaves,
        slots,
        memory,
        checksum=sidecar.checksum,
        compression=sidecar.compression,
        placed=tally.add,
    )
    by_box = {(s.leaf, s.box): m for s, m in zip(slots, memory, strict=True)}
    del memory
    job = engine.job()
    reader = ChunkReader(world.store, sink, direct=options.direct_io != "off")
    needing = {pending.leaf: pending.needing for pending in wave}
    groups = [needing[read.leaf].group(read.box) for read in reads]
    try:
        own = Sharing(world, options, operation, job, reader, sink, reads, groups).run()
        for pending in _as_they_arrive(job, reader.tasks(own), wave):
            regions_of = {box: by_box.pop((pending.leaf, box)) for box in pending.boxes}
            values[pending.result] = _build(item, pending, regions_of)
        for pending in wave:
            if _leaves_host(pending.want):
                jax.block_until_ready(values[pending.result])
    finally:
        reader.close()


def _build(item: OpenedItem, pending: _Pending, regions_of: dict[Box, np.ndarray]) -> Any:
    try:
        return build_result(pending.want, regions_of)
    except (TypeError, ValueError) as error:
        spec = item.sidecar.leaves[pending.leaf]
        if spec.kind != "prng":
            raise
        raise DamagedCheckpointError(item.path, f"no PRNG keys: {error}", leaf=spec.name) from error


def _as_they_arrive(job: Job, tasks: list[Task], wave: list[_Pending]) -> Iterator[_Pending]:
    """Runs the tasks and yields each result once all its bytes are there.

    Raises the first error, once no task is running any more.
    """
    by_leaf = {pending.leaf: pending for pending in wave}
    missing = Counter(leaf for _, leaves in tasks for leaf in leaves)
    done: queue.SimpleQueue[frozenset[int]] = queue.SimpleQueue()

    def tracked(task: Task) -> None:
        try:
            task[0]()
        except BaseException as error:
            job.fail(error)
            raise
        finally:
            done.put(task[1])

    futures = [job.read(lambda task=task: tracked(task)) for task in tasks]
    try:
        yield from (pending for pending in wave if not missing[pending.leaf])
        for _ in tasks:
            arrived = done.get()
            if job.stopped():
                break
            missing.subtract(arrived)
            yield from (by_leaf[leaf] for leaf in arrived if not missing[leaf])
    except BaseException as error:
        job.fail(error)
        raise
    finally:
        job.join(futures)


def _read_foreign(item: ForeignItem, wave: list[_Pending], values: list[Any], tally: Tally) -> None:
    for pending in wave:
        spec = item.leaves[pending.leaf]
        filled: dict[Box, np.ndarray] = {}
        for box, array in zip(
            pending.boxes, regions(pending.boxes, DTYPES[spec.dtype]), strict=True
        ):
            item.read(pending.leaf, box, array)
            tally.add(array.nbytes)
            filled[box] = array
        values[pending.result] = build_result(pending.want, filled)


def tree_bytes(tree: Any) -> int:
    """Bytes of the arrays of a tree, each counted once in the job."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(tree))
