"""Progress bars on the standard error stream, for those who asked for them.

One thread looks at all tallies a few times a second and draws those that have been there for a
second; short saves and restores show nothing. All bars of the process share one live display of
rich's. It keeps away while the program shows one of its own, and it never disturbs a save: whatever
goes wrong here ends the showing, and nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxckpt.io.progress import Tally

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_LOOK_SECS = 0.2
_LOOKS_BEFORE = 5
_NOTEBOOK_COLUMNS = 100


class _Row:
    """A tally, how often it was looked at, and its bar once it has one."""

    def __init__(self) -> None:
        self.looks = 0
        self.task: TaskID | None = None

    @property
    def shown(self) -> bool:
        """Whether it has been there for long."""
        return self.looks > _LOOKS_BEFORE


class Bars:
    """A `Display` for people.

    Args:
        console: makes rich's console whenever the first bar appears.
        repeat: calls a function again and again until it returns False, on another thread.
    """

    def __init__(
        self,
        console: Callable[[], Console] | None = None,
        repeat: Callable[[Callable[[], bool]], None] | None = None,
    ) -> None:
        self._console = console or _standard_error
        self._repeat = repeat or _repeat
        self._rows: dict[Tally, _Row] = {}
        self._progress: Progress | None = None
        self._looking = self._broken = False
        self._lock = threading.RLock()

    def begin(self, tally: Tally) -> None:
        """See `Display`."""
        with self._lock:
            if self._broken:
                return
            self._rows[tally] = _Row()
            begins, self._looking = not self._looking, True
        if begins:
            self._careful(lambda: self._repeat(self.look))

    def end(self, tally: Tally, *, whole: bool) -> None:
        """See `Display`. The last bar that ends well stays on the screen."""
        with self._lock:
            row = self._rows.pop(tally, None)
            if row is not None and row.task is not None:
                self._careful(lambda: self._end_row(tally, row, whole))

    def look(self) -> bool:
        """Draws all that is to be seen; whether there is anything left to look at."""
        with self._lock:
            if self._rows and not self._broken:
                self._careful(self._draw)
            self._looking = bool(self._rows)
            return self._looking

    # -- with the lock held ------------------------------------------------------------------------

    def _draw(self) -> None:
        for row in self._rows.values():
            row.looks += 1
        if _others_display():
            self._take_down()
            return
        if self._progress is None:
            self._progress = _progress(self._console())
        for tally, row in self._rows.items():
            self._update(self._progress, tally, row)
        if any(row.shown for row in self._rows.values()):
            self._progress.start()
        self._progress.refresh()

    def _update(self, progress: Progress, tally: Tally, row: _Row) -> None:
        """Measures from the first look on, also what is not shown yet."""
        if row.task is None:
            row.task = progress.add_task(tally.what, total=tally.total_bytes, **_words(tally))
        progress.update(row.task, completed=tally.done_bytes, visible=row.shown)
        speed = progress.tasks[progress.task_ids.index(row.task)].speed
        progress.update(row.task, **_words(tally, speed))

    def _end_row(self, tally: Tally, row: _Row, whole: bool) -> None:
        progress, task = self._progress, row.task
        if progress is None or task is None:
            return
        last = not any(other.shown for other in self._rows.values())
        if whole and row.shown and last:
            for other in self._rows.values():
                self._remove(progress, other)
            progress.update(task, total=tally.done_bytes)
            self._update(progress, tally, row)
        else:
            progress.remove_task(task)
        if last:
            self._take_down()

    def _take_down(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            for row in self._rows.values():
                self._remove(progress, row)
            if progress.live.is_started and progress.tasks:
                progress.stop()  # in a file it ends the line
            else:
                progress.live.stop()

    def _remove(self, progress: Progress, row: _Row) -> None:
        if row.task is not None:
            progress.remove_task(row.task)
            row.task = None

    def _careful(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001  (a closed stream, a full one: no reason to fail a save)
            self._broken = True
            self._rows.clear()


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    what = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", table_column=what, markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        auto_refresh=False,
        # The streams are the program's: it may have replaced them, or do so meanwhile.
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )


def _words(tally: Tally, speed: float | None = None) -> dict[str, Any]:
    total = "" if tally.total_bytes is None else f" of {tally.total_bytes / 1e9:.2f}"
    rate = "" if speed is None else f"{speed / 1e9:.2f} GB/s"
    return {"amount": f"{tally.done_bytes / 1e9:.2f}{total} GB", "rate": rate}


def _others_display() -> bool:
    """Whether the program has a live display of rich's: it puts itself before the streams."""
    from rich.file_proxy import FileProxy

    return isinstance(sys.stdout, FileProxy) or isinstance(sys.stderr, FileProxy)


def _standard_error() -> Console:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_jupyter:
        return console
    # As text: rich's widgets need a package more, and the cell's own thread.
    return Console(stderr=True, force_jupyter=False, force_terminal=True, width=_NOTEBOOK_COLUMNS)


def _repeat(look: Callable[[], bool]) -> None:
    pause = threading.Event()

    def run() -> None:
        while not pause.wait(_LOOK_SECS) and look():
            pass

    threading.Thread(target=run, name="jaxckpt-bars", daemon=True).start()
