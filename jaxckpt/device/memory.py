"""Host memory for restored regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxckpt._types import Box
from jaxckpt.io.extents import round_up
from jaxckpt.io.local import aligned_memory

_ALIGNED_FROM_BYTES = 64 << 10


def regions(boxes: Sequence[Box], dtype: np.dtype) -> list[np.ndarray]:
    """An uninitialised array for each box of a leaf.

    Large ones lie page-aligned in one mapping: direct I/O reads into them, and jax's CPU backend
    takes them over without a copy. That memory is theirs for good and never used again.
    """
    sizes = [box.size * dtype.itemsize for box in boxes]
    if sum(sizes) < _ALIGNED_FROM_BYTES:
        return [np.empty(box.shape, dtype) for box in boxes]
    total = sum(map(round_up, sizes))
    memory = np.frombuffer(aligned_memory(total, huge_pages=True), np.uint8)
    out: list[np.ndarray] = []
    start = 0
    for box, size in zip(boxes, sizes, strict=True):
        out.append(memory[start : start + size].view(dtype).reshape(box.shape))
        start += round_up(size)
    return out
