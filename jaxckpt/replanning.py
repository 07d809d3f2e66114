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
from jaxckpt.layout.leaves import Described, describe_leaf
from jaxckpt.planning import SavingLeaf, StatePlan, is_contiguous, plan_state


@dataclass(frozen=True, slots=True)
class _Slot:
    """A leaf as the last state had it, without its array.

    Attributes:
        number: in the plan.
        kind: its type.
        sharding: of a plain jax array; None for what must be described again.
    """

    number: int
    kind: type
    dtype: Any
    sharding: jax.sharding.Sharding | None


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
            leaves = self._bound(values)
            if leaves is not None:
                return dataclasses.replace(self._blank, leaves=leaves)
        self._blank = None
        plan = plan_state(state, self._options, self._processes)
        self._keep(plan, values, treedef)
        return plan

    def _bound(self, values: list[Any]) -> list[SavingLeaf] | None:
        """The leaves of the last plan with new values; None if it does not fit them."""
        assert self._blank is not None
        leaves = list(self._blank.leaves)
        for slot, x in zip(self._slots, values, strict=True):
            old = leaves[slot.number]
            if type(x) is not slot.kind:
                return None
            if slot.sharding is not None:
                same = x.shape == old.spec.shape and x.dtype == slot.dtype
                if not same or x.sharding != slot.sharding or x.is_deleted():
                    return None
                was = old.described
                described = Described(
                    "jax", was.shape, x, was.dtype, was.partition, "", "", was.sharding
                )
                leaves[slot.number] = SavingLeaf(old.spec, described)
            else:
                new = self._described_again(old, x)
                if new is None:
                    return None
                leaves[slot.number] = new
        return leaves

    def _described_again(self, old: SavingLeaf, x: Any) -> SavingLeaf | None:
        new, was = describe_leaf(old.spec.path, x, self._processes), old.described
        same = dataclasses.replace(new, source=None, value="") == dataclasses.replace(was, value="")
        if not same or not is_contiguous(new.source):
            return None
        return SavingLeaf(dataclasses.replace(old.spec, value=new.value), new)

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
            described = plan.leaves[number].described
            if not is_contiguous(described.source):
                return
            plain = described.kind == "jax" and described.source is x
            sharding = x.sharding if plain else None
            slots.append(_Slot(number, type(x), x.dtype if plain else None, sharding))
        blank = [
            SavingLeaf(leaf.spec, dataclasses.replace(leaf.described, source=None))
            for leaf in plan.leaves
        ]
        self._treedef, self._slots = treedef, slots
        self._blank = dataclasses.replace(plan, leaves=blank)
