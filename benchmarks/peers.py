"""The peers: orbax as it comes and tuned, torch DCP and safetensors.

None of them makes its whole output durable, so each save ends with a sync of all that it wrote.
Torch and safetensors end with arrays in host memory; only orbax and jaxckpt also put them on the
devices.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from benchmarks.cases import Case
from benchmarks.disk import sync_tree
from benchmarks.states import State

ORBAX, TORCH, SAFETENSORS = "orbax", "torch", "safetensors"
TUNED = ("orbax-raw-zarr3", "orbax-raw-zarr2", "orbax-raw-files")
PEERS = (ORBAX, *TUNED, TORCH, SAFETENSORS)
_PAGE_BYTES = 4096


def peers(state: State) -> tuple[list[Case], list[str]]:
    """All peers that are installed, and a line for each that is not."""
    cases, notes = [orbax_default(state), *_orbax_tuned(state)], list[str]()
    for name, make in ((TORCH, _torch), (SAFETENSORS, _safetensors)):
        try:
            cases.append(make(state))
        except ImportError as error:
            notes.append(f"{name} is left out: {error}")
    return cases, notes


def orbax_default(state: State) -> Case:
    """What orbax's documentation begins with."""
    checkpointer = ocp.StandardCheckpointer()

    def save(path: str) -> None:
        checkpointer.save(path, state.arrays)
        checkpointer.wait_until_finished()
        sync_tree(path)

    def restore(path: str) -> Any:
        return jax.block_until_ready(checkpointer.restore(path, state.target))

    return Case(
        name=ORBAX,
        label="orbax",
        settings="StandardCheckpointer(), wait_until_finished()",
        save=save,
        restore=restore,
        verify=state.verify_sharded,
    )


def _orbax_tuned(state: State) -> list[Case]:
    """The settings of orbax 0.12 that came out fastest of those tried, for saves or restores.

    No compression makes the difference; which of these is ahead depends on the disk, so all are
    measured and the best counts. Chunks are whole shards in each: smaller ones were slower.
    """
    zarr3, zarr2, files = TUNED
    return [
        _tuned(state, zarr3, "orbax, raw zarr3", zarr3=True, ocdbt=True, data_file_bytes=0),
        _tuned(state, zarr2, "orbax, raw zarr2", zarr3=False, ocdbt=True, data_file_bytes=None),
        _tuned(state, files, "orbax, raw files", zarr3=True, ocdbt=False, data_file_bytes=None),
    ]


def _tuned(
    state: State, name: str, label: str, *, zarr3: bool, ocdbt: bool, data_file_bytes: int | None
) -> Case:
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=zarr3, use_ocdbt=ocdbt, use_compression=False)
    checkpointer = ocp.Checkpointer(handler)
    placement = ocp.checkpoint_utils.construct_restore_args(state.target)
    settings = f"use_zarr3={zarr3}, use_ocdbt={ocdbt}, use_compression=False"
    if data_file_bytes is not None:
        settings += f", ocdbt_target_data_file_size={data_file_bytes}"

    def save(path: str) -> None:
        args = ocp.args.PyTreeSave(state.arrays, ocdbt_target_data_file_size=data_file_bytes)
        checkpointer.save(path, args=args)
        sync_tree(path)

    def restore(path: str) -> Any:
        args = ocp.args.PyTreeRestore(state.target, restore_args=placement)
        return jax.block_until_ready(checkpointer.restore(path, args=args))

    return Case(
        name=name,
        label=label,
        settings=f"PyTreeCheckpointHandler({settings})",
        save=save,
        restore=restore,
        verify=state.verify_sharded,
    )


def _torch(state: State) -> Case:
    import torch
    import torch.distributed.checkpoint as dcp

    tensors = {name: torch.from_numpy(leaf) for name, leaf in state.host.items()}

    def save(path: str) -> None:
        dcp.save(tensors, checkpoint_id=path, no_dist=True)
        sync_tree(path)

    def restore(path: str) -> dict[str, Any]:
        empty = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        dcp.load(empty, checkpoint_id=path, no_dist=True)
        return empty

    return Case(
        name=TORCH,
        label="torch DCP",
        settings="checkpoint.save(no_dist=True), checkpoint.load into empty tensors",
        save=save,
        restore=restore,
        verify=state.verify,
    )


def _safetensors(state: State) -> Case:
    from safetensors.numpy import load_file, save_file

    def save(path: str) -> None:
        os.mkdir(path)
        save_file(state.host, os.path.join(path, "state.safetensors"))
        sync_tree(path)

    def restore(path: str) -> dict[str, Any]:
        loaded = load_file(os.path.join(path, "state.safetensors"))
        for leaf in loaded.values():
            _touch(leaf)
        return loaded

    return Case(
        name=SAFETENSORS,
        label="safetensors",
        settings="numpy.save_file, numpy.load_file with every page read",
        save=save,
        restore=restore,
        verify=state.verify,
    )


def _touch(leaf: np.ndarray) -> None:
    """Reads a byte of every page: an array over a mapped file is no restore before that."""
    leaf.reshape(-1).view(np.uint8)[::_PAGE_BYTES].max()
