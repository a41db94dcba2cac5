"""What an evaluation needs of each recorded call, read once for all evaluations of a step."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...dump import Call, Value
from ...store import records
from ...store.argument_trees import fold
from ...store.op_names import UNDEFINED_OUTPUT_OPS, is_collective, read_op_name
from ..composed_ops import has_reference
from ..flow.data_flow import DataFlow
from ..rerun.run_op import recorded_slots
from .memory import Group, group_of

_CASTS: Final = "aten::_to_copy"
_COPY: Final = "aten::copy_"
_ATTENTION: Final = "scaled_dot_product"  # they draw only with dropout; running them shows it


Key = tuple[Hashable, tuple[float, ...]]  # a call without the floats among its arguments, and these floats


@dataclass(slots=True)
class CallPlan:
    """One call, as an evaluation needs it."""

    call: Call
    read: set[int]  # ids of the values whose contents it reads
    reads: list[tuple[str, Value]]
    results: dict[str, Value]  # its results, by slot, without views
    recorded: list[tuple[str, Any]]  # all that it returned and wrote, by slot
    is_run: bool  # False if it returns unwritten memory, or raised
    may_draw: bool  # random numbers
    draws: bool  # it draws: its op always does, or running it showed that
    is_collective: bool
    makes_integers: bool  # of floats, by a cast
    copies: tuple[Value, Value] | None  # copies bytes of a storage to another
    frees: list[Group]  # memory that no later call reads
    is_met: bool = False  # the inputs of all its ranks are known
    _form: _Form | None = None

    @property
    def is_keyed(self) -> bool:
        """True if calls with equal keys have equal results."""
        return not (self.draws or self.is_met)

    def key(self, number_of: Mapping[int, int], literals: Mapping[float, float]) -> Key:
        """Return the op and its arguments, with the numbers of values for tensors.

        Args:
            number_of: the numbers of values, by id.
            literals: numbers that stand for others.
        """
        form = self._form
        if form is None:
            form = self._form = _form_of(self.call, self.read)
        numbers = []
        for id, dtype in form.values:
            number = number_of.get(id)
            numbers.append(number if number is not None and not dtype.is_whole else (number, dtype.name))
        floats = tuple(literals.get(one, one) for one in form.floats) if literals else form.floats
        return (self.call.op, form.structure, tuple(numbers)), floats


class _Dtype(NamedTuple):
    name: str
    is_whole: bool  # of integers, which wrap around, so that the dtype matters


class _Form(NamedTuple):
    """The arguments of a call without the numbers of tensors."""

    structure: Hashable  # with shapes in the places of tensors, and gaps for floating numbers
    values: tuple[tuple[int, _Dtype], ...]  # id, 0 of what is only written to
    floats: tuple[float, ...]


def _form_of(call: Call, read: Container[int]) -> _Form:
    values: list[tuple[int, _Dtype]] = []
    floats: list[float] = []

    def leaf(tree: Any) -> Hashable:
        if type(tree) is float:
            floats.append(tree)
            return "float"
        if type(tree) is not tuple:
            return type(tree).__name__, tree
        if tree[0] != records.TREE_VALUE:
            return tree
        value = call.rank.value_by_id(tree[1])
        values.append((tree[1] if tree[1] in read else 0, _Dtype(value.dtype_name, not value.is_floating)))
        return ("value", *value.record.shape)

    record = call.record
    structure = (
        tuple(fold(tree, leaf, _branch) for tree in record.args),
        tuple((name, fold(tree, leaf, _branch)) for name, tree in (record.kwargs or {}).items()),
    )
    return _Form(structure, tuple(values), tuple(floats))


def _branch(tree: Any, found: list[Any]) -> Hashable:
    return (tree[0], *found)


def _copied(call: Call) -> tuple[Value, Value] | None:
    """Return the bytes that a call copies, and their destination: a deep copy copies storages, not tensors."""
    given = dict(call.input_values())
    found = [given[slot] for slot in ("input.1", "input.0") if slot in given]
    is_of_bytes = len(found) == 2 and all(v.dtype_name == "uint8" and v.storage for v in found)
    return (found[0], found[1]) if is_of_bytes and found[0].numel == found[1].numel else None


def plan_of(flow: DataFlow, met: Container[int] = ()) -> list[CallPlan]:
    """Return the plans of a step's calls; `met` are the collectives that can be run."""
    random = flow.rank.tables.random
    found = []
    last: dict[Group, CallPlan] = {}
    for call in flow.calls():
        name = read_op_name(call.op).without_overload
        read = call.read_value_ids()
        given = call.input_values()
        recorded = list(recorded_slots(call))
        is_cast = name == _CASTS
        plan = CallPlan(
            call,
            read,
            [(slot, value) for slot, value in given if value.id in read],
            dict(flow.results(call)),
            recorded,
            is_run=name not in UNDEFINED_OUTPUT_OPS and call.error is None,
            may_draw=call.id in random,
            draws=call.id in random and not (_ATTENTION in call.op or has_reference(call.op)),
            is_collective=is_collective(call.op),
            makes_integers=is_cast and not any(isinstance(v, Value) and v.dtype.is_floating_point for _, v in recorded),
            copies=_copied(call) if name == _COPY else None,
            frees=[],
            is_met=call.id in met,
        )
        found.append(plan)
        for value in (*(v for _, v in given), *(item for _, item in recorded if isinstance(item, Value))):
            last[group_of(value.storage, value.id)] = plan
    for group, plan in last.items():
        plan.frees.append(group)
    return found
