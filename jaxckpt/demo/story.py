"""The story of the demo: train, be killed, go on, and compare with a run that was not killed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxckpt.errors import InvalidOptionsError, JaxckptError, NotACheckpointError
from jaxckpt.reporting import report

_PICTURE = "report.png"


class DemoError(JaxckptError, RuntimeError):
    """The demo did not end as it should."""


def tell(directory: Path, steps: int, save_every: int, console: Console) -> None:
    """Runs the demo; see `jaxckpt.cli`.

    Raises:
        DemoError: a process failed, or the final parameters differ.
        NotACheckpointError: the directory holds something that the demo did not make.
    """
    if save_every < 1 or steps < 2 * save_every:
        raise InvalidOptionsError("steps", steps, f"at least twice save_every ({save_every})")
    _clear(directory)
    kill_at = steps // 2 + save_every // 2
    killed, whole = directory / "interrupted", directory / "uninterrupted"
    console.print(f"[bold]1. Train with a checkpoint every {save_every} steps[/bold]")
    _train(killed, steps, save_every, kill_at=kill_at)
    console.print("[bold]2. Start the same command again[/bold]")
    resumed = _train(killed, steps, save_every)
    console.print("[bold]3. The same training, not interrupted[/bold]")
    reference = _train(whole, steps, save_every)
    if resumed["digest"] != reference["digest"]:
        raise DemoError(
            f"the resumed run ends with other parameters ({resumed['digest'][:16]}) than the "
            f"uninterrupted one ({reference['digest'][:16]})."
        )
    _show_result(killed, resumed, kill_at, console)
    _show_time(killed, directory / _PICTURE, console)
    _show_commands(killed, resumed, console)


def _clear(directory: Path) -> None:
    ours = {"interrupted", "uninterrupted", _PICTURE}
    if directory.exists():
        if not directory.is_dir() or not {p.name for p in directory.iterdir()} <= ours:
            raise NotACheckpointError(
                str(directory), "it is no directory of an earlier demo", "Choose another one."
            )
        shutil.rmtree(directory)


def _train(
    directory: Path, steps: int, save_every: int, kill_at: int | None = None
) -> dict[str, Any]:
    command = [sys.executable, "-m", "jaxckpt.demo.train", str(directory)]
    command += [f"--steps={steps}", f"--save-every={save_every}"]
    if kill_at is not None:
        command.append(f"--kill-at={kill_at}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if kill_at is not None and done.returncode == -signal.SIGKILL:
        return {}
    if done.returncode != 0 or kill_at is not None:
        raise DemoError(f"the training process ended with code {done.returncode}.")
    return json.loads(done.stdout.splitlines()[-1])


def _show_result(directory: Path, resumed: dict[str, Any], kill_at: int, console: Console) -> None:
    stalls = resumed["stall_ms"]
    size = resumed["nbytes"] / 1e6
    table = Table(title="What happened", show_header=False)
    table.add_row("killed at", f"step {kill_at}")
    table.add_row("resumed at", f"step {resumed['first']}, the newest good checkpoint")
    table.add_row("final loss", f"{resumed['loss']:.4f}")
    table.add_row("final parameters", "equal to the uninterrupted run, to the bit")
    table.add_row("digest", resumed["digest"][:32])
    table.add_row("checkpoints kept", ", ".join(map(str, resumed["kept"])))
    middle = statistics.median(stalls)
    table.add_row(
        "training stood still",
        f"{middle:.1f} ms a save (median of {len(stalls)}; "
        f"{size:.1f} MB, {size / middle:.2f} GB/s)",
    )
    table.add_row("where", str(directory))
    console.print(table)


def _show_time(run: Path, picture: Path, console: Console) -> None:
    """From the journal of the killed run: both of its sessions, and what was between them."""
    found = report(run)
    console.print(f"[bold]4. Where the time of the killed run went: jaxckpt report {run}[/bold]")
    console.print(found)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("As a picture: needs matplotlib, pip install 'jaxckpt\\[report]'")
        return
    found.save_picture(picture)
    console.print(f"As a picture: {picture}", highlight=False, soft_wrap=True)


def _show_commands(directory: Path, resumed: dict[str, Any], console: Console) -> None:
    step = directory / str(resumed["kept"][-1])
    console.print("Look at it:", style="bold")
    console.print(f"  find {step} -type f", highlight=False)
    code = f"import jaxckpt; print(jaxckpt.restore('{step}')['params'])"
    console.print(f'  python -c "{code}"', highlight=False, soft_wrap=True)
    console.print("Plain orbax reads it too:")
    run = directory.absolute()
    code = f"import orbax.checkpoint as ocp; print(ocp.CheckpointManager('{run}').latest_step())"
    console.print(f'  python -c "{code}"', highlight=False, soft_wrap=True)
