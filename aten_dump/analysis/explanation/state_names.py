"""What the memory is that a step begins with: parameters, buffers, optimizer state, data; and what two steps begin with
otherwise.

Theory of operation
    A recording has tensors and the calls that read them. What requires a gradient is a parameter. What only the
    optimizer reads is its state, of the parameter whose gradient the same call reads. What the forward writes in place
    is a buffer of the module that writes it. What a module is called with, or no module reads, is data. If a run was
    resumed without one of these, it begins with other contents, and the name is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from ...dump import Call, Value
from ...store.op_names import UNSCALE_GRADIENTS, read_op_name, reads_no_elements
from ..evaluation.evaluation import Evaluation, is_of_node
from ..flow.data_flow import DataFlow
from ..flow.leaves import leaf_gradients, named_leaves
from ..signatures.signature import sign_value

Group: TypeAlias = Literal["parameters", "buffers", "optimizer state", "gradient scaler", "data"]
_ORDER: Final[tuple[Group, ...]] = ("parameters", "buffers", "optimizer state", "gradient scaler", "data")
# One of these that only one side reads was not lost: an input that the other does not use, a scale that is made late.
_ON_ONE_SIDE: Final = ("buffers", "gradient scaler", "data")
_SCALES: Final = "_amp_update_scale_"
_MOMENTS: Final = {"addcmul_": "exp_avg_sq", "lerp_": "exp_avg"}  # op with which torch's optimizers write it
_FOREACH: Final = "_foreach_"
OWNER: Final = " of "  # between the name of optimizer state and that of its parameter
_MOST: Final = 4


class StateName(NamedTuple):
    """The name of memory, and its kind."""

    group: Group
    name: str


class StateNames:
    """Names the memory that a recorded step begins with."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def of(self, value: Value) -> StateName:
        """Return the name of memory from outside."""
        place = value.record.place
        name = self._parameters.get(place)
        readers = self._readers.get(place, [])
        if name is not None:
            return StateName("parameters", name)
        if any(_is_of_scaler(call) for call, _ in readers):
            return StateName("gradient scaler", "scale" if value.is_floating else "growth tracker")
        if readers and all(call.phase == "optimizer" for call, _ in readers):
            return StateName("optimizer state", self._of_optimizer(value, readers))
        within = next(((call, slot) for call, slot in readers if call.module), None)
        if value.requires_grad and within is not None:
            return StateName("parameters", f"{within[0].module} {list(value.shape)}")
        if within is None or value.id in self._given_to_modules:
            return StateName("data", f"{value.dtype_name}{list(value.shape)}")
        named = next((f"{call.module}.{name}" for call, slot in readers if (name := _argument(call, slot))), "")
        if value.numel == 1 and not value.is_floating and "add_" in (read_op_name(call.op).name for call, _ in readers):
            named = f"{within[0].module}.num_batches_tracked"
        return StateName("buffers", named or f"{within[0].module} ({value.dtype_name}{list(value.shape)})")

    def _of_optimizer(self, value: Value, readers: Sequence[tuple[Call, str]]) -> str:
        if value.numel == 1:
            return "step"
        ops = [read_op_name(call.op).name.removeprefix(_FOREACH) for call, _ in readers]
        role = next((_MOMENTS[op] for op in ops if op in _MOMENTS), "momentum" if "add_" in ops else "state")
        if role == _MOMENTS["addcmul_"] and "mul_" not in ops:  # it does not decay, as of Adagrad
            role = "sum"
        owner = next(filter(None, (self._beside(call, slot) for call, slot in readers)), "")
        return f"{role}{OWNER}{owner}" if owner else f"{role} {list(value.shape)}"

    def _beside(self, call: Call, slot: str) -> str:
        """Return the parameter that a call reads, or whose gradient it reads, beside a slot; in lists, at its index."""
        place = slot.split(".")[2:]
        for other, value in self._flow.reads(call):
            name = self._parameters.get(value.record.place) or self._gradients.get(value.record.place)
            if name is not None and other != slot and other.split(".")[2:] == place:
                return name
        return ""

    @cached_property
    def _parameters(self) -> dict[tuple[object, ...], str]:
        leaves = named_leaves(self._flow, leaf_gradients(self._flow))
        return {leaf.record.place: name for name, leaf in leaves.items()}

    @cached_property
    def _gradients(self) -> dict[tuple[object, ...], str]:
        return {value.record.place: name for name, value in self._flow.rank.gradients.items()}

    @cached_property
    def _readers(self) -> dict[tuple[object, ...], list[tuple[Call, str]]]:
        found: dict[tuple[object, ...], list[tuple[Call, str]]] = {}
        for call in self._flow.calls():
            for slot, value in self._flow.reads(call):
                found.setdefault(value.record.place, []).append((call, slot))
        return found

    @cached_property
    def _given_to_modules(self) -> set[int]:
        return {
            number
            for call in self._flow.rank.calls.filter(kind="module", phase="forward")
            for _, number in call.input_slots()
        }


def _is_of_scaler(call: Call) -> bool:
    return read_op_name(call.op).name == _SCALES or call.op.startswith(UNSCALE_GRADIENTS)


def _argument(call: Call, slot: str) -> str:
    """Return the argument name of a slot if it names the memory: ``running_mean``."""
    place = slot.split(".")[1]
    name = call.arguments[int(place)] if place.isdecimal() and int(place) < len(call.arguments) else ""
    return name if name.startswith("running") else ""


def begins_otherwise(
    sides: tuple[Evaluation, Evaluation], odd: tuple[Sequence[Value], Sequence[Value]]
) -> Iterator[str]:
    """Yield a sentence about each difference in what two steps begin with, if it can be named.

    Args:
        sides: evaluated.
        odd: what each side reads from outside and the other side does not have.
    """
    names = [StateNames(side.flow) for side in sides]
    outside = [[value for value in odd[side] if not is_of_node(value)] for side in (0, 1)]
    found = [dict.fromkeys(names[side].of(value) for value in outside[side]) for side in (0, 1)]
    known = [{names[side].of(value) for value in sides[side].sources.values()} for side in (0, 1)]
    said, is_resumed = [], True
    for group in _ORDER:
        every = [one for one in {**found[0], **found[1]} if one.group == group]
        for text, some in (
            ("", [one.name for one in every if one in known[0] and one in known[1]]),
            (" that the target lacks", [one.name for one in every if one not in known[0]]),
            (" that only the target has", [one.name for one in every if one not in known[1]]),
        ):
            if some and not (group in _ON_ONE_SIDE and text):
                said.append(f"{group}{text} ({_listed(some)})")
                is_resumed = is_resumed and not (
                    group == "parameters" and text
                )  # a run that is resumed keeps its names
    if _draws_otherwise(sides):
        said.append("random state")
    if said:
        what = "; not restored, if one was resumed" if is_resumed else ""
        yield f"the step does not begin as the baseline's does{what}: {'; '.join(said)}"


def _draws_otherwise(sides: tuple[Evaluation, Evaluation]) -> bool:
    """Return True if the first random numbers that both sides draw by the same op differ."""
    firsts = []
    for side in sides:
        drawn = side.flow.rank.tables.random
        draws = (call for call in side.flow.calls() if call.id in drawn)
        firsts.append(next((call for call in draws if _is_drawn_alone(side, call)), None))
    one, other = firsts
    if one is None or other is None or one.op != other.op:
        return False
    for (_, mine), (_, its) in zip(one.result_values(), other.result_values(), strict=False):
        if mine.has_data and its.has_data and mine.shape == its.shape and sign_value(mine) != sign_value(its):
            return True
    return False


def _is_drawn_alone(evaluation: Evaluation, call: Call) -> bool:
    """Return True if what a call makes of random numbers depends on no floats that it reads."""
    read = evaluation.flow.reads(call)
    return reads_no_elements(call.op) or not any(value.is_floating for _, value in read)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
