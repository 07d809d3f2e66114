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
    encode_steps,
)
from jaxckpt.io.store import join
from jaxckpt.io.world import World

_NS = 1e-9
_NEVER = 1 << 62
_SESSION_BYTES = 6
# A kill hides the steps since the last record: a tenth of the session, within these bounds.
_FLUSH_PART, _FLUSH_MIN_NS, _FLUSH_MAX_NS = 10, 50_000_000, 1_000_000_000
# From these sizes of the file on, steps are written so seldom only: at the first rate it grows by
# about 8 MB a day, so it would reach its limit after years.
_THINNING = (
    (3 * MAX_JOURNAL_BYTES // 4, 600 * _FLUSH_MAX_NS),
    (MAX_JOURNAL_BYTES // 2, 60 * _FLUSH_MAX_NS),
    (MAX_JOURNAL_BYTES // 4, 10 * _FLUSH_MAX_NS),
)
_SYNCED = frozenset({"durable", "preempted", "end"})


class Recorder:
    """The journal of one process's life in a run; only the primary's writes.

    `step`, `begins`, `begin_call` and `end_call` are for the thread that trains, the others for
    any. No method raises for what the file system says. A signal's handler may call `note`, and
    neither `flush` nor `close`.

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
        self._longest_ns, self._written = _FLUSH_MAX_NS, self._began_ns
        # Times from here on are nanoseconds of the clock. Training has reached a step at a time;
        # one value, so that another thread sees both or neither. Not written yet: `_first` to that
        # step, since `_since`, `_away` of it in calls. After it `_open` was spent in calls.
        self._reached = (-1, self._began_ns)
        self._first, self._since, self._away, self._open = -1, self._began_ns, 0, 0
        # A step that was restored, when, and what was spent in calls by then: the next step tells
        # whether training goes on from it, or it was only looked at.
        self._origin, self._origin_at, self._origin_open = -1, 0, 0
        self._alone = True  # the next steps get a record for themselves
        self._depth, self._call_began = 0, 0
        # A step before this time need only be remembered; 0 where there is more to do.
        self._due = 0 if self._on else _NEVER

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
                self._set_origin(int(str(facts["step"])))
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
            self._set_origin(step)

    def step(self, step: int) -> None:
        """Training has reached ``step``: the time since the call before was spent on it.

        To be called by every `save`, due or not.
        """
        now = self._monotonic_ns()
        if now < self._due and self._reached[0] < step:
            self._reached = (step, now)
        else:
            self._settle(step, now)

    def begin_call(self) -> None:
        """A call of jaxckpt begins: its time is no training. Calls may lie in one another."""
        with self._state:
            self._depth += 1
            if self._depth == 1 and self._on:
                self._call_began, self._due = self._monotonic_ns(), 0

    def end_call(self) -> None:
        """The call of the last `begin_call` ends."""
        with self._state:
            self._depth -= 1
            if self._depth == 0:
                self._open += self._monotonic_ns() - self._call_began

    # -- inside ------------------------------------------------------------------------------------

    def _set_origin(self, step: int) -> None:
        now = self._monotonic_ns()
        self._origin, self._origin_at, self._origin_open = step, now, self._open
        if self._depth:
            self._origin_open += now - self._call_began
        self._due = 0 if self._on else _NEVER

    def _settle(self, step: int, now: int) -> None:
        """A step with all that may have happened since the one before."""
        if not self._on:
            return
        with self._state:
            now = self._call_began if self._depth else now
            origin, reached, away = self._origin, self._reached[0], self._open
            self._origin, self._open = -1, 0
            if 0 <= reached < step and not reached < origin < step:
                self._away += away  # what was restored, if anything, was only looked at
            else:
                self._put_steps()
                if 0 <= origin < step:
                    self._first, self._since = origin, self._origin_at
                    self._away = away - self._origin_open
                else:  # nobody knows from where
                    self._first, self._since, self._away = step, now, 0
            self._reached = (step, now)
            wait = (now - self._began_ns) // _FLUSH_PART
            wait = self._longest_ns if wait > _FLUSH_MAX_NS else max(wait, _FLUSH_MIN_NS)
            if self._first < step and (self._alone or now - self._written >= wait):
                # The first by itself: it holds what a start costs, compilation above all.
                self._alone = False
                self._put_steps()
                self._written = now
            self._due = 0 if self._depth or self._alone else self._written + wait
        self._drain()

    def _put_steps(self) -> None:
        step, until = self._reached
        if not self._on or self._first >= step:
            return
        secs = max(until - self._since - self._away, 0) * _NS
        at = (until - self._began_ns) * _NS
        self._lines.append(encode_steps(self._session, at, self._first, step, secs))
        self._first, self._since, self._away = step, until, 0

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
            self._written = self._monotonic_ns()
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
        for size, interval_ns in _THINNING:
            if self._file_bytes > size:
                self._longest_ns = interval_ns
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
