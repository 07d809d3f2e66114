"""A training loop in a job of several processes: ``job.py DIRECTORY INDEX COUNT``.

On a cluster drop the last two arguments: ``jax.distributed.initialize()`` finds them under Slurm,
Kubernetes and on TPU pods.
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxckpt

directory, *job = sys.argv[1:]
if job:
    jax.distributed.initialize("127.0.0.1:12765", num_processes=int(job[1]), process_id=int(job[0]))
else:
    jax.distributed.initialize()

# Every process holds all columns of "w" between its two devices, as data-parallel replicas do.
mesh = jax.make_mesh((jax.process_count(), 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
columns = NamedSharding(mesh, PartitionSpec(None, "model"))
rows = NamedSharding(mesh, PartitionSpec("data"))


def create() -> dict[str, jax.Array]:
    return {"w": jnp.ones((512, 1024)), "steps": jnp.zeros((), jnp.int32)}


@jax.jit
def train_step(state: dict[str, jax.Array], batch: jax.Array) -> dict[str, jax.Array]:
    gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * gradient, "steps": state["steps"] + 1}


everywhere = NamedSharding(mesh, PartitionSpec())
state = jax.jit(create, out_shardings={"w": columns, "steps": everywhere})()

with jaxckpt.Checkpointer(directory, save_every=20, keep_last=2) as ckpt:
    state, first = ckpt.restore_or(state)
    for step in range(first, first + 60):
        data = np.random.default_rng(step).random((64, 512), np.float32)
        batch = jax.make_array_from_callback(data.shape, rows, lambda i, data=data: data[i])
        state = jax.block_until_ready(train_step(state, batch))
        ckpt.save(step + 1, state)
    ckpt.wait()
    if jax.process_index() == 0:
        kept = ", ".join(map(str, ckpt.steps()))
        print(f"trained from step {first} to {int(state['steps'])}; steps kept: {kept}")
