"""One step of a run, from its state to its directory: what `Checkpointer.save` begins and ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from jaxckpt._options import Options
from jaxckpt.agreeing import agree, check_shared
from jaxckpt.commit import retire
from jaxckpt.donating import Donations
from jaxckpt.errors import PreemptedError, StepExistsError
from jaxckpt.in_flight import InFlight, Snapshot
from jaxckpt.io.coordinator import WAIT_SECS
from jaxckpt.io.engine import Engine
from jaxckpt.io.pool import HostPool
from jaxckpt.io.store import join
from jaxckpt.io.threads import settle
from jaxckpt.io.world import World
from jaxckpt.items import encode_items
from jaxckpt.planning import StatePlan, fingerprint, keep_host_values
from jaxckpt.policy import StepInfo
from jaxckpt.recording import Recorder
from jaxckpt.replanning import Planner
from jaxckpt.retention import Retention
from jaxckpt.saving import StagedItem, headroom
from jaxckpt.single import refuse_if_full
from jaxckpt.step_place import StepPlace

THREAD_NAMES = "jaxckpt-"  # those of all threads of this package begin so
_WRITE_SECS = 3600.0  # how long one snapshot may take before others are missed
_LOOK_SECS = 0.5
HOST_BYTES = 8 << 20
"""Of numpy arrays this much is copied beside the pool, where the pool can not hold the state."""
_MOST_TOLD_STEPS = 64  # in a record of the journal


@dataclass(frozen=True, slots=True)
class Tools:
    """What all saves of a `Checkpointer` share."""

    world: World
    options: Options
    engine: Engine
    pool: HostPool
    planner: Planner
    in_flight: InFlight
    retention: Retention
    donations: Donations
    recorder: Recorder


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What is to be saved where.

    Attributes:
        run: the run's directory.
        info: step, time of the call and metrics.
        items: values for JSON by item name.
        replace: take the place of a step that is there.
        lazy: return before the state is copied.
        keep: never drop it for a newer one.
        deadline_ns: give it up if it is not durable by then, by the monotonic clock.
    """

    run: str
    info: StepInfo
    items: Mapping[str, Any] | None
    replace: bool
    lazy: bool
    keep: bool
    deadline_ns: int | None = None

    @property
    def step(self) -> int:
        """The step."""
        return self.info.step


class StepSave:
    """A step on its way: made by the caller's thread, finished by one of its own.

    Every process of the job makes one. Where one process's copying fails, it says so on its
    thread, so that all processes learn it at the same place of their program.

    Attributes:
        done: has the outcome once the step is durable and older ones are gone, or it was dropped.
        dropped_for: the newer step that it was dropped for, if it was.
        durable_secs: from the call until it was durable; None before, and where it was dropped.
        waited_secs: how long the caller waited for room.
        failed: the numbers of earlier saves that all processes now raise the errors of.
        staged: set once the state may be changed and donated.
    """

    def __init__(
        self, tools: Tools, request: StepRequest, known_failed: list[int], state: Any
    ) -> None:
        self._tools, self._world, self._request = tools, tools.world, request
        self._began_ns = tools.world.monotonic_ns()
        self._written_secs = 0.0
        self._final = join(request.run, str(request.step))
        self._failed: BaseException | None = None
        self._behind = request.lazy  # whether the thread copies
        self._opened, self._may_copy = threading.Event(), False
        self._taken_up = threading.Lock()  # by the thread that finishes it, or that gives it up
        self.staged = threading.Event()
        self.done: Future[None] = Future()
        self.dropped_for: int | None = None
        self.durable_secs: float | None = None
        self.waited_secs = 0.0
        what = f"save of step {request.step} to {request.run}"
        self._operation = self._world.coordinator.operation(what)
        with self._operation:
            self._items = encode_items(request.items, request.info.metrics)
            self._place = StepPlace(self._world, self._operation, self._final, self._items)
            plan = tools.planner.plan(state)
            self.nbytes = plan.nbytes
            self._refuse(plan)
            tools.retention.begin(request.info)
            try:
                self._snapshot = self._admit(plan)
                try:
                    self.failed = self._agree(plan, known_failed)
                    self._begin(plan)
                except BaseException as error:
                    try:
                        self._end_begun(error)
                    finally:
                        tools.in_flight.end(self._snapshot)
                    raise
            except BaseException:
                tools.retention.end(request.info, durable=False)
                raise

    @property
    def number(self) -> int:
        """Of the operation: the same on every process."""
        return self._operation.number

    @property
    def step(self) -> int:
        """The step."""
        return self._request.step

    # -- on the caller's thread --------------------------------------------------------------------

    def _refuse(self, plan: StatePlan) -> None:
        if self._request.replace:
            self._tools.in_flight.wait_for(self._request.step, self._look)
        elif self._world.coordinator.is_primary:
            there = self._world.store.stat(self._final) is not None
            if there or self._tools.in_flight.has(self._request.step):
                raise StepExistsError(self._final)
        if self._world.coordinator.is_primary:
            refuse_if_full(self._world, self._tools.options, self._request.run, plan.nbytes)

    def _admit(self, plan: StatePlan) -> Snapshot:
        tools, request = self._tools, self._request
        tools.pool.set_headroom(headroom(plan) * tools.in_flight.limit)
        blocks = plan.writes.blocks(tools.pool.block_bytes)
        decides = self._world.coordinator.is_primary
        retention, info, keep = tools.retention, request.info, request.keep
        began = self._world.monotonic_ns()

        def must_keep() -> bool:
            return keep or retention.must_keep(info)

        look = self._look
        urgent = request.deadline_ns is not None
        snapshot = tools.in_flight.admit(
            request.step, blocks, must_keep, look, decides=decides, urgent=urgent
        )
        self.waited_secs = self._secs_since(began)
        return snapshot

    def _agree(self, plan: StatePlan, known_failed: list[int]) -> list[int]:
        if self._operation.alone:
            return known_failed
        own = fingerprint(plan, self._tools.options, self._items)
        # Whoever has a snapshot that waits may have to write it first.
        patience = _WRITE_SECS if self._snapshot.number > 1 else WAIT_SECS
        word = agree(self._operation, own, " ".join(map(str, known_failed)), patience)
        return [int(number) for number in word.split()]

    def _begin(self, plan: StatePlan) -> None:
        """Copies the state out, or has the thread do it."""
        tools = self._tools
        self._item = StagedItem(
            self._world,
            tools.options,
            tools.engine,
            tools.pool,
            self._operation,
            plan,
            whole=self._snapshot.whole,
            expired=self._expired,
        )
        whole, views, kept = self._snapshot.whole, False, -1
        if tools.options.views and not plan.writes.far_bytes:
            views = tools.donations.views_serve() and not self._request.lazy
            kept = tools.donations.choose(plan.sources, plan.viewable)
        # What lies in numpy arrays is copied in the call, and into the pool: a lazy save that has
        # too much of it, and whose state does not fit, is an ordinary one.
        self._behind = whole and (self._request.lazy or views)
        if not whole and self._request.lazy and plan.writes.host_bytes <= HOST_BYTES:
            keep_host_values(plan)
            self._behind = True
            self._start()
        elif self._behind:
            self._take_hold(kept, views=views)
            self._start()
        elif whole:
            self._copy()
            self._start()
        else:
            self._start()
            self._copy_while_written()

    def _copy_while_written(self) -> None:
        try:
            while not self._opened.wait(_LOOK_SECS):
                self._look()
            if self._may_copy:
                self._copy()
            elif self._operation.alone:
                self.done.result()
        except BaseException as error:
            self._failed = self._failed or error
            self.staged.set()
            wait([self.done])  # it has removed what it had made
            raise

    def _take_hold(self, but: int, *, views: bool) -> None:
        """As `_copy`, with the copying left to the thread."""
        pool, waited = self._tools.pool, self._tools.pool.waited_secs
        try:
            self._item.take_hold(but, views=views)
            self.waited_secs += pool.waited_secs - waited
        except Exception as error:
            if self._operation.alone:
                raise
            self._failed = error
            self._operation.fail(error)
        if views or self._failed is not None:
            self.staged.set()

    def _copy(self) -> None:
        """In a job an error is raised by `done`, at the same call of all processes."""
        pool, waited = self._tools.pool, self._tools.pool.waited_secs
        try:
            self._item.copy_out()
            self.waited_secs += pool.waited_secs - waited
        except BaseException as error:
            self._failed = error
            told_later = self._behind or not self._operation.alone
            if not isinstance(error, Exception) or not told_later:
                raise
            self._operation.fail(error)
        finally:
            self.staged.set()

    def _start(self) -> None:
        # No daemon: the interpreter ends only when this has ended.
        name = f"{THREAD_NAMES}save-{self._request.step}"
        threading.Thread(target=self._run, name=name).start()

    def _end_begun(self, error: BaseException) -> None:
        """An interrupt comes anywhere: after the copying, or when the thread is running already."""
        item: StagedItem | None = getattr(self, "_item", None)
        if item is None:
            return
        if self._taken_up.acquire(blocking=False):
            item.abandon()
            return
        self._failed = self._failed or error
        item.stop(error)
        wait([self.done])

    # -- on its own thread -------------------------------------------------------------------------

    def _run(self) -> None:
        if self._taken_up.acquire(blocking=False):
            settle(self.done, self._finish)

    def _finish(self) -> None:
        recorder, step = self._tools.recorder, self._request.step
        try:
            with self._operation:
                with self._place:
                    place = self._write()
                if place:
                    self._commit()
                else:
                    recorder.note("dropped", step=step, newer=self.dropped_for)
        except BaseException as error:
            recorder.note("failed", step=step, error=type(error).__name__)
            raise
        finally:
            try:
                self._tools.retention.end(self._request.info, durable=self.durable_secs is not None)
            finally:  # that may have to look at the storage; others must not wait for ever
                self._opened.set()
                self.staged.set()
                self._tools.in_flight.end(self._snapshot)

    def _write(self) -> str:
        """Blocks until the step is whole in its hidden directory; "" if it was dropped."""
        snapshot, in_flight = self._snapshot, self._tools.in_flight
        try:
            if self._behind and snapshot.whole and self._failed is None:
                self._copy()
            if snapshot.whole:
                self._raise_failed()
            in_flight.ready(snapshot)
            place = self._wait_for_turn()
            if not place:
                self._item.abandon()
                return ""
            check_shared(self._world.store, self._operation, place)
            began = self._world.monotonic_ns()
            self._item.open(place)
            if not snapshot.whole:
                self._may_copy = True
                self._opened.set()
                if self._behind:
                    self._copy()
                self.staged.wait()
                self._raise_failed()
            self._item.write()
            self._written_secs = self._secs_since(began)
        except BaseException:
            self._item.abandon()
            raise
        in_flight.release(snapshot)
        self._place.describe()
        self._raise_failed()
        return place

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _look(self) -> None:
        expired = self._expired()
        if expired is not None:
            raise expired
        self._raise_failed()
        self._operation.check()

    def _expired(self) -> PreemptedError | None:
        deadline = self._request.deadline_ns
        if deadline is None or self._world.monotonic_ns() < deadline:
            return None
        return PreemptedError(self._request.step)

    def give_up(self, error: Exception) -> None:
        """Stops what can still be stopped; `done` gets the error, unless the step is durable."""
        self._failed = error
        self._operation.fail(error)
        self._item.stop(error)

    def _secs_since(self, began_ns: int) -> float:
        return (self._world.monotonic_ns() - began_ns) * 1e-9

    def _wait_for_turn(self) -> str:
        """The place to write to, the same on every process; "" if it was dropped."""
        in_flight, snapshot, place = self._tools.in_flight, self._snapshot, ""
        is_primary = self._world.coordinator.is_primary
        if is_primary and in_flight.wait_for_turn(snapshot, self._look):
            place = self._place.open()
        word = json.dumps([place, snapshot.newer]).encode()
        patience = _WRITE_SECS * in_flight.count  # each of those before it may take its time
        answer = self._operation.meet("its turn", b"", lambda _: word, _WRITE_SECS, patience)
        place, self.dropped_for = json.loads(answer)
        if place and not is_primary:
            in_flight.take_turn(snapshot)
        return place

    def _commit(self) -> None:
        """The step gets its name; then, and once it is read back, older ones go."""
        request, tools, word = self._request, self._tools, b"[]"
        if self._place.opened:
            self._place.publish(replace=request.replace)
            self._tell_durable()
            tools.retention.end(request.info, durable=True)
            tools.in_flight.made_durable(self._snapshot)
            word = json.dumps(tools.retention.removable(request.step)).encode()
        removable = json.loads(self._operation.meet("committed", b"", lambda _: word))
        if not self._place.opened:
            self._tell_durable()
        if removable:
            self._item.read_back(self._place.final_item)

            def remove(_: list[bytes]) -> bytes:
                self._remove(removable)
                return b""

            # In the meeting, so that an error of it is raised on every process.
            self._operation.meet("read back", b"", remove, _WRITE_SECS)

    def _remove(self, steps: list[int]) -> None:
        """The primary's part after the last byte."""
        tools = self._tools
        for old in steps:
            retire(self._world, join(self._request.run, str(old)))
            tools.retention.removed(old)
        tools.recorder.note("removed", steps=steps[:_MOST_TOLD_STEPS])

    def _tell_durable(self) -> None:
        self.durable_secs = self._secs_since(self._began_ns)
        self._tools.recorder.note(
            "durable",
            step=self._request.step,
            secs=self.durable_secs,
            write_secs=self._written_secs,
            bytes=self.nbytes,
        )
