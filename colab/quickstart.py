# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3  # noqa: ERA001
# ---

# %% [markdown]
# # jaxckpt in five minutes
#
# A Flax model is trained on handwritten digits, is interrupted, goes on from its newest checkpoint,
# and ends with the same bits as a run that was not interrupted. Then: what lies on disk, the same
# checkpoint on another mesh, the same checkpoint read by plain orbax, and a damaged byte.
#
# The notebook runs on one GPU, on several, or on none; all cells may be run again.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("jaxckpt") is None:
    near = [p for p in (Path(), Path("..")) if (p / "jaxckpt" / "_version.py").exists()]
    source = str(near[0].resolve()) if near else "jaxckpt"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", f"{source}[demo]"], check=True)

# %% [markdown]
# ## Devices
#
# Without an accelerator, jax shows one CPU device. Eight virtual ones make it more interesting;
# they must be asked for before jax starts, and asking again does nothing.

# %%
import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax

jax.devices()

# %%
import functools
import shutil
import tempfile
import warnings

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import jaxckpt
from jaxckpt import policy

runs = Path(tempfile.mkdtemp(prefix="jaxckpt-"))

# %% [markdown]
# ## A model, its state on a mesh, and a step
#
# Matrices are split over the mesh where their shape allows it, everything else lies on every
# device. The step donates its state: a save has copied it out when it returns.

# %%
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32)


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(10)(x)


model = 2 if len(jax.devices()) % 2 == 0 else 1
mesh = jax.make_mesh(
    (len(jax.devices()) // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2
)


def place(leaf, mesh, spec):
    """The sharding of a leaf: split if it is a matrix that the mesh divides."""
    parts = [mesh.shape[name] if name else 1 for name in spec]
    fits = len(leaf.shape) == 2 and not any(n % k for n, k in zip(leaf.shape, parts, strict=True))
    return NamedSharding(mesh, spec if fits else PartitionSpec())


def create_state():
    module = Classifier()

    def create():
        params = module.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]
        return TrainState.create(apply_fn=module.apply, params=params, tx=optax.adam(1e-3))

    spec = PartitionSpec("data", "model")
    shardings = jax.tree.map(lambda leaf: place(leaf, mesh, spec), jax.eval_shape(create))
    return jax.jit(create, out_shardings=shardings)()


@functools.partial(jax.jit, donate_argnames="state")
def train_step(state, images, labels):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


# %% [markdown]
# ## A training loop
#
# Two calls are jaxckpt's: `restore_or` at the beginning and `save` in the loop, at every step. What
# is saved and what is kept is said by policies: here every tenth step, of which the newest three
# stay and the one with the least loss. `should_stop` is true once the job was told to end. The
# batch depends on the step alone, so a resumed run sees the data that it would have seen. Each step
# is waited for because of jax's virtual CPU devices: on few cores they can lock up when many steps
# with collectives are in flight.


# %%
class PowerCutError(Exception):
    pass


def train(directory, steps=60, interrupt_at=None):
    state = create_state()
    when = policy.EverySteps(10)
    keep = policy.KeepLast(3) | policy.KeepBest(1, "loss")
    with jaxckpt.Checkpointer(directory, save_policy=when, keep_policy=keep) as ckpt:
        state, first = ckpt.restore_or(state)
        print(f"beginning at step {first}")
        for step in range(first, steps):
            pick = np.random.default_rng(step).integers(0, len(images), 64)
            state, loss = train_step(state, images[pick], labels[pick])
            jax.block_until_ready(loss)
            ckpt.save(step + 1, state, metrics={"loss": loss})
            if ckpt.should_stop:
                break
            if step + 1 == interrupt_at:
                raise PowerCutError
    print(f"loss {loss:.4f} after step {steps}")
    return state


try:
    train(runs / "interrupted", interrupt_at=37)
except PowerCutError:
    print("interrupted at step 37")

# %% [markdown]
# The same call goes on from the newest step:

# %%
resumed = train(runs / "interrupted")

# %% [markdown]
# And a run that nobody interrupted ends with the same bits:

# %%
whole = train(runs / "whole")


def same_bits(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


assert same_bits(resumed, whole)

# %% [markdown]
# ## Where the time goes
#
# Each run keeps a journal. From it: the share of the time in which steps were made that count
# (ETTR), stalls, the work that the interruption cost, and how long the run took to come back. In a
# run as short as this one, most of the time is start-up and compilation.
#
# `policy.Autopilot()` in place of `EverySteps` measures all this while training runs, and chooses
# the interval that loses least time.

# %%
report = jaxckpt.report(runs / "interrupted")
report

# %% [markdown]
# ## What lies on disk
#
# One directory for each step that was kept, as orbax's manager names them. Small arrays lie in the
# index, larger ones end to end in data files; the files with a `_` in front are for plain orbax.

# %%
run = runs / "interrupted"
print("steps:", sorted(int(path.name) for path in run.iterdir() if path.name.isdigit()))
for file in sorted((run / "60").rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size:>10}  {file.relative_to(run)}")

# %% [markdown]
# ## On another mesh
#
# The target says where each array goes; it takes no memory. Here four CPU devices, and matrices
# split by columns: what was saved on accelerators comes back there too.

# %%
other = Mesh(np.array(jax.devices("cpu")[:4]), ("columns",))
by_columns = PartitionSpec(None, "columns")
target = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=place(leaf, other, by_columns)
    ),
    jax.eval_shape(create_state),
)
moved = jaxckpt.restore(run / "60", target)
kernel = moved.params["Dense_1"]["kernel"]
print(kernel.sharding)
assert same_bits(moved, whole)

# %% [markdown]
# Without a target there are numpy arrays in plain containers, and no device is needed:

# %%
plain = jaxckpt.restore(run / "60")
print({name: layer["kernel"].shape for name, layer in plain["params"].items()})

# %% [markdown]
# ## Plain orbax reads it
#
# It would do so as well where jaxckpt is not installed.

# %%
import orbax.checkpoint as ocp

with ocp.CheckpointManager(run.absolute()) as manager:
    step = manager.latest_step()
    by_orbax = manager.restore(step, args=ocp.args.StandardRestore(whole))
assert step == 60
assert same_bits(by_orbax, whole)

# %% [markdown]
# ## A damaged byte
#
# Every chunk has a checksum. One flipped bit in the newest step, and `restore_or` says so and takes
# the step before; `restore` of that step would be an error.

# %%
data = run / "60" / "default" / "ocdbt.process_0" / "d" / "data-00000"
content = bytearray(data.read_bytes())
content[100] ^= 1
data.write_bytes(content)

with jaxckpt.Checkpointer(run) as ckpt, warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", jaxckpt.DamagedStepWarning)
    state, step = ckpt.restore_or(create_state())
print(*(warning.message for warning in seen), sep="\n")
assert step == 50

# %%
shutil.rmtree(runs)
