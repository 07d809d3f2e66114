"""What stays of a run: the facts about its steps, and the policy's answers."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence

from jaxckpt import policy
from jaxckpt.errors import DamagedCheckpointError, StorageError
from jaxckpt.format import orbaxmeta
from jaxckpt.format.limits import MAX_JSON_BYTES
from jaxckpt.io.store import Store, join, read_file
from jaxckpt.places import scan_steps
from jaxckpt.policy import KeepPolicy, StepInfo


class Retention:
    """Says which steps may go, and which snapshots may be dropped. For any thread.

    Args:
        keep: what stays.
    """

    def __init__(self, store: Store, run: str, keep: KeepPolicy) -> None:
        self._store, self._run, self._keep = store, run, keep
        self._known: dict[int, StepInfo] | None = None
        self._coming: dict[int, StepInfo] = {}
        self._unread: set[int] = set()  # steps whose facts could not be read: they stay
        self._sorted: list[StepInfo] | None = None
        self._by_time: tuple[Sequence[StepInfo], Sequence[StepInfo]] = ((), ())
        self._lock = threading.Lock()

    def begin(self, info: StepInfo) -> None:
        """A step is on its way."""
        with self._lock:
            self._sorted = None
            self._coming[info.step] = info

    def end(self, info: StepInfo, *, durable: bool) -> None:
        """It is durable, or will not come."""
        with self._lock:
            self._sorted = None
            if self._coming.get(info.step) is info:
                del self._coming[info.step]
            if durable:
                self._load()[info.step] = info

    def steps(self) -> Sequence[StepInfo]:
        """The steps that are there or on their way, ascending. Asked at every step."""
        with self._lock:
            if self._sorted is None:
                together = {**self._load(), **self._coming}
                self._sorted = [together[step] for step in sorted(together)]
            return self._sorted

    def saved(self) -> Sequence[StepInfo]:
        """The same, the last one saved at the end. Asked at every step.

        Not always the highest number: a loop may go back to an older step and save on from there.
        """
        steps = self.steps()
        with self._lock:
            if self._by_time[0] is not steps:
                self._by_time = steps, sorted(steps, key=lambda info: info.time)
            return self._by_time[1]

    def must_keep(self, info: StepInfo) -> bool:
        """Whether a step on its way is to be kept even when newer ones are durable."""
        if isinstance(self._keep, policy.KeepAll):
            return True
        steps = self.steps()
        numbers = [other.step for other in steps]
        if info.step not in numbers:
            return False
        return policy.must_keep(self._keep, steps, numbers.index(info.step))

    def removable(self, just_saved: int) -> list[int]:
        """The steps that may go once ``just_saved`` is durable and read back, oldest first.

        Raises:
            DamagedCheckpointError: what was just saved is not whole on the disk.
        """
        if isinstance(self._keep, policy.KeepAll):
            return []
        with self._lock:
            known = self._load()
            # To look at all steps takes a while where many are kept: not if nothing may go anyway.
            if not self._ask(known, just_saved):
                return []
        scan = scan_steps(self._store, self._run)
        whole = set(scan.whole)
        if just_saved not in whole and just_saved in scan.damaged:
            path = join(self._run, str(just_saved))
            raise DamagedCheckpointError(path, scan.damaged[just_saved])
        with self._lock:
            self._sorted = None
            known = self._load()
            for step in set(known) - whole:
                del known[step]
            for step in whole - set(known):
                known[step] = self._info_of(step)
            return self._ask(known, just_saved)

    def removed(self, step: int) -> None:
        """A step is gone."""
        with self._lock:
            self._sorted = None
            self._load().pop(step, None)

    def _load(self) -> dict[int, StepInfo]:
        if self._known is None:
            whole = scan_steps(self._store, self._run).whole
            self._known = {step: self._info_of(step) for step in whole}
        return self._known

    def _ask(self, known: dict[int, StepInfo], just_saved: int) -> list[int]:
        may_go = policy.removable(self._keep, list(known.values()), just_saved)
        return [step for step in may_go if step not in self._unread]

    def _info_of(self, step: int) -> StepInfo:
        """A step as its metadata tells it; of one that tells nothing, the number."""
        path = join(self._run, str(step))
        began, metrics = 0, None
        try:
            name = join(path, orbaxmeta.STEP_NAME)
            data = read_file(self._store, name, MAX_JSON_BYTES, path)
            began, metrics = orbaxmeta.decode_step_facts(data, name)
            if metrics is None:
                name = join(path, orbaxmeta.METRICS_ITEM, orbaxmeta.METRICS_ITEM)
                data = read_file(self._store, name, MAX_JSON_BYTES, path)
                metrics = orbaxmeta.decode_metrics(data, name)
        except FileNotFoundError:
            pass  # it has none
        except (ValueError, StorageError):
            self._unread.add(step)  # it may be the best one: nobody can say that it may go
        return StepInfo(step, time_of(began), metrics)


def time_of(wall_ns: int) -> dt.datetime:
    """A time with a zone from nanoseconds since 1970."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    try:
        return epoch + dt.timedelta(microseconds=wall_ns // 1000)
    except OverflowError:
        return epoch
