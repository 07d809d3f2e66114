"""What one process writes, value by value: keys, and places in its data files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from jaxckpt.format.zarr import chunk_key, packed_bound
from jaxckpt.layout.placement import Place, Placer, longest_place
from jaxckpt.layout.save_plan import PlannedChunk, SavePlan

INLINE_BYTES = 4096
"""Values up to this size lie in the B+tree itself, so that all small leaves are one read."""
SMALL_BYTES = 256 << 10
"""To hand smaller values to threads takes longer than to copy them."""
_MOST_TOGETHER_BYTES = 8 << 20
_GROUPS_WANTED = 32  # enough to keep some threads level, few enough to hand out


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A chunk that this process writes.

    Attributes:
        key: in the database.
        row: of the chunk in the plan's list of all chunks.
        place: in the data files; None for a value of the index, and where its length is known
            only when it is compressed.
        uneven: the box is cut at the end of the array and stored in a whole chunk's shape.
        bare: it is all of an array that can be looked at as it is.
        far: it comes over a bus.
    """

    chunk: PlannedChunk
    key: bytes
    row: int
    place: Place | None
    uneven: bool
    bare: bool
    far: bool


@dataclass(frozen=True, eq=False)
class WritePlan:
    """All values of one process, in the order of their places.

    Attributes:
        groups: the same in parts that a thread copies at a time, small values and large ones in
            groups of their own.
        cut: those that are a part of what their device holds.
        far_bytes, host_bytes: how much of it comes over a bus, and from numpy arrays.
        ends: where the last value of each data file ends, were nothing compressed.
        nbytes: raw bytes.
        at_worst: bytes and files that compressed values fill if none of them shrinks.
    """

    groups: tuple[tuple[PlannedWrite, ...], ...]
    cut: tuple[PlannedWrite, ...]
    far_bytes: int
    host_bytes: int
    compressed: bool
    ends: tuple[int, ...]
    nbytes: int
    at_worst: tuple[int, int]

    @property
    def writes(self) -> Iterable[PlannedWrite]:
        """The values one after another."""
        return (write for group in self.groups for write in group)

    def blocks(self, block_bytes: int) -> int:
        """How many blocks of memory hold all of it at once; never too few."""
        if self.compressed:  # dealt to files in another way, and in any order
            nbytes, files = self.at_worst
            return -(-nbytes // block_bytes) + files
        return sum(-(-end // block_bytes) for end in self.ends)


def plan_writes(
    plan: SavePlan,
    process: int,
    names: Sequence[str],
    bare: Collection[int],
    far: Collection[int],
    *,
    data_file_bytes: int,
    footer_bytes: int,
    compressed: bool,
) -> WritePlan:
    """Gives each value of a process its place.

    Args:
        names: of the leaves.
        bare: numbers of leaves that can be looked at as they are.
        far: numbers of leaves on accelerators.
        footer_bytes: what is stored behind each value.
    """
    placer = Placer(data_file_bytes)
    writes: list[PlannedWrite] = []
    for chunk in plan.owned_by(process):
        # What is compressed takes its place when it is; here it counts as large as it can get.
        place = None
        if compressed or chunk.nbytes > INLINE_BYTES:
            place = placer.place(chunk.nbytes + footer_bytes)
        key = chunk_key(names[chunk.leaf], chunk.position)
        row = plan.starts[chunk.leaf] + chunk.number
        uneven = chunk.box.shape != plan.chunk_shapes[chunk.leaf]
        whole = chunk.leaf in bare and plan.chunk_count(chunk.leaf) == 1 and not uneven
        kept = None if compressed else place
        write = PlannedWrite(chunk, key, row, kept, uneven, whole, chunk.leaf in far)
        writes.append(write)
    nbytes = sum(write.chunk.nbytes for write in writes)
    cut = tuple(w for w in writes if w.chunk.device >= 0 and w.chunk.box != w.chunk.region)
    far_bytes = sum(write.chunk.nbytes for write in writes if write.far)
    host_bytes = sum(write.chunk.nbytes for write in writes if write.chunk.device == -1)
    worst = sum(longest_place(packed_bound(w.chunk.nbytes) + footer_bytes) for w in writes)
    return WritePlan(
        tuple(_grouped(writes, nbytes)),
        cut,
        far_bytes,
        host_bytes,
        compressed,
        tuple(placer.ends),
        nbytes,
        (worst, worst // data_file_bytes + 1),  # each file but the last holds as much at least
    )


def _grouped(writes: list[PlannedWrite], nbytes: int) -> Iterable[tuple[PlannedWrite, ...]]:
    wanted = min(_MOST_TOGETHER_BYTES, max(SMALL_BYTES, nbytes // _GROUPS_WANTED))
    together: list[PlannedWrite] = []
    held = 0
    for write in writes:
        small = write.chunk.nbytes < SMALL_BYTES
        if together and small != (together[0].chunk.nbytes < SMALL_BYTES):
            yield tuple(together)
            together, held = [], 0
        together.append(write)
        held += write.chunk.nbytes
        if held >= wanted:
            yield tuple(together)
            together, held = [], 0
    if together:
        yield tuple(together)
