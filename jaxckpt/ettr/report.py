"""What `jaxckpt.report` gives: the figures of a run, and the ways to look at them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxckpt.ettr.figures import Figures


@dataclass(frozen=True)
class RunReport(Figures):
    """The figures of a run; see `Figures`. Prints as a table, in a notebook too."""

    def save_picture(self, path: str | Path) -> None:
        """Draws the run as a timeline into a new or replaced PNG or SVG file, by its suffix.

        Raises:
            InvalidOptionsError: another suffix, or matplotlib is missing.
        """
        from jaxckpt.ettr.picture import save_picture

        save_picture(self, path)

    def to_tensorboard(self, directory: str | Path) -> None:
        """Writes events that TensorBoard shows.

        Raises:
            InvalidOptionsError: the package tensorboard is missing.
        """
        from jaxckpt.ettr.export import to_tensorboard

        to_tensorboard(self, directory)

    def __rich__(self) -> Any:
        from jaxckpt.ettr.table import as_rich

        return as_rich(self)

    def __str__(self) -> str:
        from jaxckpt.ettr.table import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from jaxckpt.ettr.table import as_html

        return as_html(self)
