"""A state like the last one takes its plan over: a loop saves the same tree again and again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
from jax import tree_util

from jaxckpt._calm import calm
from jaxckpt._options import Options
from jaxckpt._types import Processes
from jaxckpt.layout.leaves import describe_leaf
from jaxckpt.planning import SavingLeaf, StatePlan, is_contiguous, plan_state


@dataclass(frozen=True, slots=True)
class _Slot:
    """A leaf as the last state had it, without its array.

    Attributes:
        number: in the plan.
        kind: its type.
        shape, dtype, sharding: of a plain jax array; None for what must be described again.
    """

    number: int
    kind: type
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    sharding: jax.sharding.Sharding | None = None


class Planner:
    """Plans saves of one loop; see the module. Keeps no array of a state.

    Args:
        options, processes: see ``plan_state``.
    """

    def __init__(self, options: Options, processes: Processes) -> None:
        self._options, self._processes = options, processes
        self._treedef: Any = None
        self._slots: list[_Slot] = []
        self._blank: StatePlan | None = None

    @calm
    def plan(self, state: Any) -> StatePlan:
        """The same as ``plan_state``, sooner where only values have changed."""
        try:
            values, treedef = tree_util.tree_flatten(state)
        except (TypeError, ValueError):
            return plan_state(state, self._options, self._processes)  # has the right error
        if self._blank is not None and treedef == self._treedef:
            plan = self._bound(values)
            if plan is not None:
                return plan
        self._blank = None
        plan = plan_state(state, self._options, self._processes)
        self._keep(plan, values, treedef)
        return plan

    def _bound(self, values: list[Any]) -> StatePlan | None:
        """The last plan with new values; None if it does not fit them."""
        assert self._blank is not None
        leaves, sources = self._blank.leaves, list(self._blank.sources)
        for slot, x in zip(self._slots, values, strict=True):
            if type(x) is not slot.kind:
                return None
            if slot.sharding is not None:
                same = x.shape == slot.shape and x.dtype == slot.dtype and not x.is_deleted()
                if not same or not (x.sharding is slot.sharding or x.sharding == slot.sharding):
                    return None
                sources[slot.number] = x
                continue
            again = self._described_again(self._blank.leaves[slot.number], x)
            if again is None:
                return None
            if leaves is self._blank.leaves:
                leaves = list(leaves)
            leaves[slot.number], sources[slot.number] = again
        return dataclasses.replace(self._blank, leaves=leaves, sources=sources)

    def _described_again(self, old: SavingLeaf, x: Any) -> tuple[SavingLeaf, Any] | None:
        new = describe_leaf(old.spec.path, x, self._processes)
        source, was = new.source, old.described
        new = dataclasses.replace(new, source=None)
        if dataclasses.replace(new, value=was.value) != was or not is_contiguous(source):
            return None
        return SavingLeaf(dataclasses.replace(old.spec, value=new.value), new), source

    def _keep(self, plan: StatePlan, values: list[Any], treedef: Any) -> None:
        numbers = [
            number
            for number, leaf in enumerate(plan.leaves)
            if leaf.spec.kind not in ("none", "empty")
        ]
        if len(numbers) != len(values):
            return
        slots: list[_Slot] = []
        for number, x in zip(numbers, values, strict=True):
            source = plan.sources[number]
            if not is_contiguous(source):
                return
            if plan.leaves[number].spec.kind == "jax" and source is x:
                slots.append(_Slot(number, type(x), x.shape, x.dtype, x.sharding))
            else:
                slots.append(_Slot(number, type(x)))
        self._treedef, self._slots = treedef, slots
        self._blank = dataclasses.replace(plan, sources=[None] * len(plan.sources))
