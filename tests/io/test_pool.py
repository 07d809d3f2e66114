"""The budget of the pool, also where more of it must stay free than before."""

from __future__ import annotations

from jaxckpt.io.pool import HostPool


def test_blocks_beyond_a_smaller_limit_are_not_kept() -> None:
    pool = HostPool(16 << 20)
    blocks = [pool.acquire() for _ in range(pool.blocks)]
    pool.set_headroom(4 << 20)  # while all are out
    assert pool.blocks < len(blocks)
    for block in blocks:
        assert block is not None
        pool.give_back(block)
    assert pool._held <= pool.budget_bytes - (4 << 20)
    assert pool._held == len(pool._free) * pool.block_bytes
    again = [pool.acquire() for _ in range(pool.blocks)]
    assert all(block is not None for block in again)
    assert pool._held <= pool.budget_bytes - (4 << 20)
