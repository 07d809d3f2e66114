"""The training loop of the demo: a Flax model on scikit-learn's handwritten digits.

Run as a process of its own, so that it can be killed as a crash would: ``python -m
jaxckpt.demo.train DIRECTORY``. The last line that it prints is a JSON summary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import jaxckpt
from jaxckpt import policy

_CPU_DEVICES = 8
_WIDTH = 1024
_BATCH = 64
_LOOK_EVERY = 5  # steps between looks at the loss and the share of time that counts


class Classifier(nn.Module):
    """Two hidden layers; the widths divide by any small number of devices."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(_WIDTH)(x))
        return nn.Dense(10)(x)


def make_mesh() -> Mesh:
    """All devices; two for the model where there is an even number of them."""
    devices = jax.devices()
    model = 2 if len(devices) % 2 == 0 else 1
    shape = (len(devices) // model, model)
    return jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def make_state(mesh: Mesh) -> TrainState:
    """A fresh state; matrices lie split over the mesh, vectors on every device."""
    model = Classifier()

    def create() -> TrainState:
        variables = model.init(jax.random.key(0), jnp.zeros((1, 64)))
        return TrainState.create(
            apply_fn=model.apply, params=variables["params"], tx=optax.adam(1e-3)
        )

    def place(leaf: Any) -> NamedSharding:
        shape = leaf.shape
        split = len(shape) == 2 and shape[1] % mesh.shape["model"] == 0
        split = split and shape[0] % mesh.shape["data"] == 0
        return NamedSharding(mesh, PartitionSpec("data", "model") if split else PartitionSpec())

    shardings = jax.tree.map(place, jax.eval_shape(create))
    return jax.jit(create, out_shardings=shardings)()


@jax.jit
def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, Any]:
    """One step of Adam on the cross entropy."""

    def loss_of(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def digest(tree: Any) -> str:
    """A hash over the bits of all leaves."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


def run(directory: str, steps: int, save_every: int, kill_at: int | None, console: Console) -> None:
    """Trains to ``steps``, from the newest good checkpoint if there is one."""
    mesh = make_mesh()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    state = make_state(mesh)
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    saves: list[float] = []
    when = policy.EverySteps(save_every)
    keep = policy.KeepLast(2) | policy.KeepBest(1, "loss")
    with jaxckpt.Checkpointer(directory, save_policy=when, keep_policy=keep) as ckpt:
        begun = time.perf_counter()
        state, first = ckpt.restore_or(state)
        seconds = time.perf_counter() - begun
        console.print(
            f"  {len(jax.devices())} {jax.default_backend()} devices, "
            f"state {nbytes / 1e6:.1f} MB in {len(jax.tree.leaves(state))} leaves; "
            + (
                f"resumed at step {first} in {seconds * 1e3:.0f} ms"
                if first
                else "no checkpoint yet, beginning at step 0"
            )
        )
        loss: Any = float("nan")
        columns = (
            TextColumn("  training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("loss {task.fields[loss]:.4f}, ETTR {task.fields[ettr]:.0%}"),
        )
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("", total=steps, completed=first, loss=loss, ettr=0.0)
            for step in range(first, steps):
                # The batch depends on the step alone, so a resumed run sees what it would have.
                pick = np.random.default_rng(step).integers(0, len(images), _BATCH)
                batch = jax.device_put((images[pick], labels[pick]), rows)
                state, loss = train_step(state, *batch)
                metrics = {"loss": float(loss)}  # also waits for the step: the stall is jaxckpt's
                begun = time.perf_counter()
                if ckpt.save(step + 1, state, metrics=metrics):
                    saves.append(time.perf_counter() - begun)
                if ckpt.should_stop:
                    break
                progress.update(bar, completed=step + 1, loss=metrics["loss"])
                if (step + 1) % _LOOK_EVERY == 0:
                    progress.update(bar, ettr=ckpt.report().ettr or 0.0)
                if step + 1 == kill_at:
                    progress.stop()
                    console.print(f"  [red]killed at step {kill_at}[/red], as a crash would do it")
                    os.kill(os.getpid(), signal.SIGKILL)
        ckpt.wait()
        kept = ckpt.steps()
    print(
        json.dumps(
            {
                "first": first,
                "kept": kept,
                "nbytes": nbytes,
                "stall_ms": [round(s * 1e3, 2) for s in saves],
                "loss": float(loss),
                "digest": digest((state.params, state.opt_state)),
            }
        )
    )


def main() -> None:
    """Reads the arguments and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--kill-at", type=int)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", _CPU_DEVICES)  # before the backend starts
    console = Console(stderr=True)
    run(args.directory, args.steps, args.save_every, args.kill_at, console)


if __name__ == "__main__":
    main()
