"""Writes a run's journal while it trains.

The journal may cost neither time nor trouble. A step is two readings of the clock and a few
additions; what is known of the steps is written with the next other record, and at least once a
second. A journal that can not be written is given up with one `JournalWarning`, and training and
saves go on as if there were none.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import warnings

from jaxckpt._version import __version__
from jaxckpt.errors import JournalWarning
from jaxckpt.ettr.records import (
    JOURNAL_FORMAT,
    JOURNAL_NAME,
    MAX_JOURNAL_BYTES,
    MAX_LINE_BYTES,
    Record,
    encode,
)
from jaxckpt.io.store import join
from jaxckpt.io.world import World

_NS = 1e-9
_SESSION_BYTES = 6
# A crash hides the steps since the last record: this share of the session, within these bounds.
_FLUSH_SHARE, _FLUSH_MIN_SECS, _FLUSH_MAX_SECS = 0.05, 0.02, 1.0
# From these sizes of the file on, steps are written so seldom only: at the first rate it grows by
# about 10 MB a day, so it would reach its limit after years.
_THINNING = (
    (3 * MAX_JOURNAL_BYTES // 4, 600.0),
    (MAX_JOURNAL_BYTES // 2, 60.0),
    (MAX_JOURNAL_BYTES // 4, 10.0),
)
_SYNCED = frozenset({"durable", "preempted", "end"})


class Recorder:
    """The journal of one process's life in a run; only the primary's writes.

    `step`, `begins`, `begin_call` and `end_call` are for the thread that trains, the others for
    any. No method raises for what the file system says.

    Args:
        world: its Store and clocks.
        run: the directory of the run, which is there.
        enabled: False makes every method do nothing.
    """

    def __init__(self, world: World, run: str, *, enabled: bool = True) -> None:
        self._store, self._wall_ns = world.store, world.wall_ns
        self._monotonic_ns, self._began_ns = world.monotonic_ns, world.monotonic_ns()
        self._run, self._path = run, join(run, JOURNAL_NAME)
        self._on = enabled and world.coordinator.is_primary
        self._session = world.random_bytes(_SESSION_BYTES).hex() if self._on else ""
        self._state = threading.RLock()  # reentrant: a signal's handler may note something
        self._io = threading.Lock()
        self._lines: list[bytes] = []
        self._sync_wanted = False
        self._file_bytes = 0
        self._longest_secs, self._written = _FLUSH_MAX_SECS, 0.0
        # Training is at step `_at` since `_until`. Not written yet: `_first` to `_at`, begun at
        # `_since`, in `_secs`. Since `_until` it trained for `_open`, and from `_mark` on.
        self._first = self._at = -1
        self._since = self._until = self._secs = self._open = self._mark = 0.0
        # A step that was restored, `_open` of then, and when: the next step tells whether training
        # goes on from it, or it was only looked at.
        self._origin = -1
        self._origin_open = self._origin_at = 0.0
        self._alone = True  # the next steps get a record for themselves
        self._depth = 0

    @property
    def recording(self) -> bool:
        """Whether records are being written."""
        return self._on

    def now(self) -> float:
        """Seconds since the session's start."""
        return (self._monotonic_ns() - self._began_ns) * _NS

    # -- records -----------------------------------------------------------------------------------

    def start(self, *, processes: int, devices: int) -> None:
        """Begins the session; what earlier ones wrote stays."""
        if not self._on:
            return
        with self._io:
            try:
                found = self._store.stat(self._path)
                self._file_bytes = found.size if found else 0
                # The last line of a killed process may be torn: end it.
                self._append(b"\n" if self._file_bytes else b"")
                if found is None:
                    self._store.sync_dir(self._run)
            except OSError as error:
                self._give_up(_reason(error))
        self.note(
            "start",
            at=0.0,
            wall=self._wall_ns() * _NS - self.now(),
            version=__version__,
            format=JOURNAL_FORMAT,
            processes=processes,
            devices=devices,
        )

    def note(self, kind: str, *, at: float | None = None, **facts: object) -> None:
        """Writes a record, and before it what is known of the steps.

        Args:
            kind: see `docs/journal.md`.
            at: when it happened, in `now`'s seconds; now by default.
            facts: the kind's fields; None for one that is not known.

        Raises:
            ValueError: there is no such kind, or a field is not as the kind has it.
        """
        if not self._on:
            return
        now = self.now()
        line = encode(Record(self._session, now if at is None else at, kind, facts))
        with self._state:
            if kind == "restore":
                self._set_origin(int(str(facts["step"])), now)
            self._put_steps()
            self._lines.append(line)
            self._sync_wanted |= kind in _SYNCED
        self._drain()

    def flush(self) -> None:
        """Writes all that is known; it then survives the death of the process."""
        with self._state:
            self._put_steps()
        with self._io:
            self._write_lines()

    def close(self) -> None:
        """Writes that the session ended as it should; nothing is written afterwards."""
        if self._on:
            self.note("end")
            self.flush()
            self._on = False

    # -- steps -------------------------------------------------------------------------------------

    def begins(self, step: int) -> None:
        """Training begins at ``step`` now. A record ``restore`` says so of the step restored."""
        with self._state:
            self._set_origin(step, self.now())

    def step(self, step: int) -> None:
        """Training has reached ``step``: the time since the call before was spent on it.

        To be called by every `save`, due or not.
        """
        if not self._on:
            return
        now = (self._monotonic_ns() - self._began_ns) * _NS
        with self._state:
            spent = self._open
            if self._depth == 0:
                spent += now - self._mark
                self._mark = now
            self._open = 0.0
            if self._origin >= 0 or not 0 <= self._at < step:
                spent = self._settle_origin(step, now, spent)
            self._secs += spent
            self._at, self._until = step, now
            if self._first == step:
                return
            secs = _FLUSH_SHARE * now
            if secs > _FLUSH_MAX_SECS:
                secs = self._longest_secs
            elif secs < _FLUSH_MIN_SECS:
                secs = _FLUSH_MIN_SECS
            if now - self._written < secs and not self._alone:
                return
            # The first by itself: it holds what a start costs, compilation above all.
            self._alone = False
            self._put_steps()
        self._drain()

    def begin_call(self) -> None:
        """A call of jaxckpt begins: its time is no training. Calls may lie in one another."""
        with self._state:
            self._depth += 1
            if self._depth == 1:
                now = self.now()
                self._open += now - self._mark
                self._mark = now

    def end_call(self) -> None:
        """The call of the last `begin_call` ends."""
        with self._state:
            self._depth -= 1
            if self._depth == 0:
                self._mark = self.now()
                if self._first == self._at and not self._open:
                    self._since = self._mark

    # -- inside ------------------------------------------------------------------------------------

    def _set_origin(self, step: int, now: float) -> None:
        trained = 0.0 if self._depth else now - self._mark
        self._origin, self._origin_open, self._origin_at = step, self._open + trained, now

    def _settle_origin(self, step: int, now: float, spent: float) -> float:
        """From which step training came to ``step``; returns the time that it took."""
        origin, self._origin = self._origin, -1
        if 0 <= self._at < step and not self._at < origin < step:
            return spent  # what was restored was only looked at
        self._put_steps()
        if 0 <= origin < step:
            self._first, self._since = origin, self._origin_at
            return spent - self._origin_open
        self._first, self._since = step, now  # nobody knows from where
        return 0.0

    def _put_steps(self) -> None:
        if not self._on or self._first >= self._at:
            return
        facts = {"first": self._first, "last": self._at, "since": self._since, "secs": self._secs}
        self._lines.append(encode(Record(self._session, self._until, "steps", facts)))
        self._first, self._since, self._secs = self._at, self._until, 0.0

    def _drain(self) -> None:
        # Whoever writes takes the lines of all: nobody waits for a slow file system but the one
        # who happens to be there. Looked at again after the release, so that none is left lying.
        while self._lines and self._io.acquire(blocking=False):
            try:
                self._write_lines()
            finally:
                self._io.release()

    def _write_lines(self) -> None:
        with self._state:
            data, sync = b"".join(self._lines), self._sync_wanted
            self._lines.clear()
            self._sync_wanted = False
            self._written = self.now()
        if not self._on or not data:
            return
        try:
            if self._file_bytes + len(data) > MAX_JOURNAL_BYTES - MAX_LINE_BYTES:
                self._append(encode(Record(self._session, self.now(), "full", {})))
                self._give_up(f"it has reached its limit of {MAX_JOURNAL_BYTES} bytes.")
                return
            self._append(data)
            if sync:
                self._store.sync_file(self._path)
        except OSError as error:
            self._give_up(_reason(error))

    def _append(self, data: bytes) -> None:
        self._store.append(self._path, data)
        self._file_bytes += len(data)
        for size, secs in _THINNING:
            if self._file_bytes > size:
                self._longest_secs = secs
                break

    def _give_up(self, reason: str) -> None:
        self._on = False
        text = (
            f"the journal {self._path} is not written any further: {reason} Training and saves go "
            "on; jaxckpt.report shows the run up to here."
        )
        with contextlib.suppress(JournalWarning):  # not even where warnings are errors
            warnings.warn(text, JournalWarning, stacklevel=4)


def _reason(error: OSError) -> str:
    code = errno.errorcode.get(error.errno or 0, "?")
    return f"{error.strerror} ({code})." if error.strerror else str(error)
