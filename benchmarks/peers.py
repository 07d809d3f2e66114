"""The peers: orbax as it comes and tuned, torch DCP and safetensors.

None of them makes its whole output durable, so each save ends with a sync of all that it wrote.
Torch and safetensors end with arrays in host memory; only orbax and jaxckpt also put them on the
devices.
"""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from benchmarks.cases import Case
from benchmarks.disk import sync_tree
from benchmarks.states import State

ORBAX, TORCH, SAFETENSORS = "orbax", "torch", "safetensors"
TUNED = ("orbax-zarr2", "orbax-zarr3", "orbax-zarr2-files", "orbax-zarr3-files")
PEERS = (ORBAX, *TUNED, TORCH, SAFETENSORS)
_PAGE_BYTES = 4096


def peers(state: State) -> tuple[list[Case], list[str]]:
    """All peers that are installed, and a line for each that is not."""
    # Orbax warns at each save without OCDBT that there is no OCDBT to merge.
    logging.set_verbosity(logging.ERROR)
    cases, notes = [orbax_default(state), *_orbax_tuned(state)], list[str]()
    for name, make in ((TORCH, _torch), (SAFETENSORS, _safetensors)):
        try:
            cases.append(make(state))
        except ImportError:
            notes.append(f"{name} is left out: it is not installed")
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
    """Orbax without compression, which is what makes it faster, in every layout that it has.

    Which layout is ahead depends on the disk and the day, so all are measured and the best
    counts. Chunks are whole shards in each; smaller ones were slower, as were small data files.
    """
    return [
        _tuned(state, name, zarr3=zarr3, ocdbt=ocdbt)
        for name, (ocdbt, zarr3) in zip(
            TUNED, itertools.product((True, False), (False, True)), strict=True
        )
    ]


def _tuned(state: State, name: str, *, zarr3: bool, ocdbt: bool) -> Case:
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=zarr3, use_ocdbt=ocdbt, use_compression=False)
    checkpointer = ocp.Checkpointer(handler)
    placement = ocp.checkpoint_utils.construct_restore_args(state.target)
    settings = f"use_zarr3={zarr3}, use_ocdbt={ocdbt}, use_compression=False"
    # No largest size of a data file; orbax takes the setting for zarr3 in OCDBT only.
    data_file_bytes = 0 if zarr3 and ocdbt else None
    if data_file_bytes is not None:
        settings += f"; ocdbt_target_data_file_size={data_file_bytes}"

    def save(path: str) -> None:
        args = ocp.args.PyTreeSave(state.arrays, ocdbt_target_data_file_size=data_file_bytes)
        checkpointer.save(path, args=args)
        sync_tree(path)

    def restore(path: str) -> Any:
        args = ocp.args.PyTreeRestore(state.target, restore_args=placement)
        return jax.block_until_ready(checkpointer.restore(path, args=args))

    return Case(
        name=name,
        label=f"orbax raw {'zarr3' if zarr3 else 'zarr2'}{'' if ocdbt else ' files'}",
        settings=f"PyTreeCheckpointHandler: {settings}",
        save=save,
        restore=restore,
        verify=state.verify_sharded,
    )


def _torch(state: State) -> Case:
    import torch
    import torch.distributed.checkpoint as dcp

    # One process is what is meant here.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
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
