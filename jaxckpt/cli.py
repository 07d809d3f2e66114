"""The command line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jaxckpt._version import __version__
from jaxckpt.errors import InvalidOptionsError, JaxckptError

app = typer.Typer(no_args_is_help=True, help="Checkpoints for JAX.", rich_markup_mode="rich")


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    """Checkpoints for JAX at the speed of the disk, readable by plain orbax."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/digits"),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 300,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 50,
) -> None:
    """Train on handwritten digits, be killed half way, go on, and end with the same bits.

    Example: jaxckpt demo --steps 200
    """
    console = Console()
    try:
        missing = [name for name in ("flax", "optax", "sklearn") if find_spec(name) is None]
        if missing:
            console.print(f"The demo needs {missing[0]}: pip install 'jaxckpt\\[demo]'")
            raise typer.Exit(2)
        from jaxckpt.demo.story import tell

        tell(directory, steps, save_every, console)
    except (JaxckptError, OSError) as error:
        console.print(f"jaxckpt demo: {error}", style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The directory of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the run's time into this PNG or SVG file.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write events for TensorBoard into this directory.")
    ] = None,
) -> None:
    """Show what a run's time went to: training, lost work, stalls, restores, restarts.

    Example: jaxckpt report runs/digits/interrupted --picture run.svg
    """
    from jaxckpt.ettr.table import printable
    from jaxckpt.reporting import report as report_of

    console = Console()
    try:
        found = report_of(run)
        if picture is not None:
            found.save_picture(picture)
        if tensorboard is not None:
            found.to_tensorboard(tensorboard)
    except (JaxckptError, OSError) as error:
        text = printable(f"jaxckpt report: {error}")
        Console(stderr=True).print(text, style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, InvalidOptionsError) else 1) from error
    if as_json:
        print(found.to_json())
    else:
        console.print(found)
