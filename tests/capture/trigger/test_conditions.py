"""When triggers fire: told from records and from what is known of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig
from aten_dump.capture.trigger.conditions import Cause, LossSpike, NonFinite, make_trigger
from aten_dump.capture.trigger.held_call import HeldCall
from aten_dump.capture.trigger.measured.extremes import Extremes
from aten_dump.capture.trigger.measured.overflow_registers import FoundSet
from aten_dump.store import records as r
from tests.capture.trigger.recording import call

NAN, INF = math.nan, math.inf
MASKED = Extremes(-0.9 * 3.4028235e38, 1.0)


@dataclass
class Facts:
    """What is known of values; each has a storage of its own."""

    notable: dict[int, Extremes] = field(default_factory=dict)
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)
    undefined: set[int] = field(default_factory=set)
    registers: dict[int, FoundSet] = field(default_factory=dict)  # by position of the call

    @property
    def has_undefined(self) -> bool:
        return bool(self.undefined)

    def is_undefined(self, value: int) -> bool:
        return value in self.undefined

    @property
    def has_extremes(self) -> bool:
        return bool(self.notable)

    def register_set(self, call: HeldCall) -> FoundSet | None:
        return self.registers.get(call.position)

    def extremes(self, value: int) -> Extremes | None:
        return self.notable.get(value)

    def stats(self, value: int) -> dict[str, Any] | None:
        return self.numbers.get(value)

    def awaits_stats(self, value: int) -> bool:
        return value not in self.numbers

    def storage(self, value: int) -> int:
        return self.storages.get(value, value)

    def text(self, number: int) -> str:
        return "layer"


def op(name: str = "aten::log", api: str = "log") -> r.Op:
    return r.Op(r.OP, 1, 0, name, "Aten", api, ["self"])


def asked(trigger: Any, known: Facts, record: r.Call, of: r.Op | None = None) -> str | None:
    cause: Cause | None = trigger(HeldCall(1, record), of or op(), known)
    return None if cause is None else cause.why


def test_nan_of_finite_inputs_is_made() -> None:
    known = Facts({2: Extremes(NAN, NAN)})
    assert asked(NonFinite(), known, call(1, (1,), 2)) == "aten::log made NaN"
    assert asked(NonFinite(), known, call(1, (1,), 2, phase=2)) == "aten::log made NaN in backward"


def test_infinity_of_finite_inputs_is_made_unless_it_was_named() -> None:
    known = Facts({2: Extremes(-1.0, INF)})
    assert asked(NonFinite(), known, call(1, (1,), 2)) == "aten::log made Inf"
    for literal in (INF, (r.TREE_LIST, 1.0, -INF), (r.TREE_COMPLEX, INF, 0.0), (r.TREE_DICT, "k", NAN)):
        record = call(1, (1,), 2)
        named = record._replace(args=[*record.args, literal])
        assert asked(NonFinite(), known, named) is None
        assert asked(NonFinite(), known, record._replace(kwargs={"value": literal})) is None
    assert asked(NonFinite(), known, record._replace(kwargs={"value": (r.TREE_LIST, 1.0)})) == "aten::log made Inf"


def test_what_comes_of_memory_that_nothing_wrote_means_nothing_until_it_is_written() -> None:
    trigger = NonFinite()
    known = Facts({2: Extremes(NAN, NAN), 3: Extremes(NAN, NAN), 4: Extremes(NAN, NAN)}, undefined={1})
    assert asked(trigger, known, call(1, (1,), 2)) is None, "of undefined memory"
    assert asked(trigger, known, call(2, (2,), 3)) is None, "and so on"
    assert asked(trigger, known, call(3, (1,), 4), op("aten::zeros_like", "zeros_like")) == "aten::zeros_like made NaN"
    known = Facts({6: Extremes(NAN, NAN)}, storages={5: 3}, undefined={1})
    assert asked(trigger, known, call(4, (9,), 5)) is None, "written anew, and finite"
    assert asked(trigger, known, call(5, (5,), 6)) == "aten::log made NaN"


def test_an_overflow_register_tells_where_values_do_not() -> None:
    device = torch.device("cpu")
    known = Facts(registers={1: FoundSet(device, was_clear=True)})
    expected = "aten::log set the overflow register of cpu: it saturates, and no value shows that"
    assert asked(NonFinite(), known, call(1, (1,), 2)) == expected
    known.registers[1] = FoundSet(device, was_clear=False)
    expected = "the overflow register of cpu was set by aten::log in backward or by what ran before it, unrecorded"
    assert asked(NonFinite(), known, call(1, (1,), 2, phase=2)) == expected


def test_what_is_passed_on_was_made_before() -> None:
    trigger, known = NonFinite(), Facts({2: Extremes(NAN, NAN), 3: Extremes(NAN, NAN)})
    assert asked(trigger, known, call(1, (1,), 2)) == "aten::log made NaN"
    assert asked(trigger, known, call(2, (2,), 3)) is None


def test_what_no_call_has_made_comes_from_outside_and_counts_once() -> None:
    trigger, known = NonFinite(), Facts({1: Extremes(NAN, NAN), 2: Extremes(NAN, NAN)})
    why = "aten::log was given NaN that no recorded call has made: a parameter, a buffer or an input"
    assert asked(trigger, known, call(1, (1,), 2)) == why
    assert asked(trigger, known, call(2, (1,), 2)) is None
    trigger.begin_step()
    assert asked(trigger, known, call(1, (1,), 2)) is None, "the step before had it already"
    trigger.begin_step()
    trigger.begin_step()
    assert asked(trigger, known, call(1, (1,), 2)) == why


def test_masks_are_meant() -> None:
    masks = Facts({1: Extremes(-INF, 0.0), 2: Extremes(-INF, 0.0)})
    assert asked(NonFinite(), masks, call(1, (1,), 2)) is None
    added = Facts({1: MASKED, 2: Extremes(-INF, 0.0)})
    assert asked(NonFinite(), added, call(1, (1,), 2)) is None, "two masks of the lowest number make -Inf"
    assert asked(NonFinite(), Facts({2: Extremes(-INF, 0.0)}), call(1, (1,), 2)) == "aten::log made Inf"
    nan = Facts({1: Extremes(-INF, 0.0), 2: Extremes(NAN, NAN)})
    assert asked(NonFinite(), nan, call(1, (1,), 2)) == "aten::log made NaN"


def test_constants_of_one_number_are_meant() -> None:
    constant = op("aten::lift_fresh", "lift_fresh")
    assert asked(NonFinite(), Facts({1: Extremes(INF, INF), 2: Extremes(INF, INF)}), call(1, (1,), 2), constant) is None
    mixed = Facts({1: Extremes(0.0, INF), 2: Extremes(0.0, INF)})
    found = asked(NonFinite(), mixed, call(1, (1,), 2), constant)
    assert found is not None and found.startswith("aten::lift_fresh was given Inf")


def test_memory_that_a_call_only_writes_is_not_given_to_it() -> None:
    known = Facts({1: Extremes(NAN, NAN)})
    zeroed = call(1, (1,), None, written=["self", (r.TREE_VALUE, 2)])
    assert asked(NonFinite(), known, zeroed, op("aten::zero_", "zero_")) is None
    read = asked(NonFinite(), known, zeroed, op("aten::add_.Tensor", "add_"))
    assert read is not None and "was given NaN" in read


def losses(trigger: LossSpike, numbers: list[float]) -> list[str | None]:
    backward = op("torch.Tensor.backward", "backward")
    return [asked(trigger, Facts({1: Extremes(x, x)}), call(1, (1,)), backward) for x in numbers]


def test_a_loss_far_above_those_before_is_a_spike() -> None:
    assert losses(LossSpike(), [2.0, 2.1, 1.9, 2.0, 2.05, 2.1]) == [None] * 6
    found = losses(LossSpike(), [2.0, 2.1, 1.9, 2.0, 2.05, 9.0])
    assert found[:-1] == [None] * 5
    assert found[-1] == "the loss is 9, the last 5 were about 2.01"
    assert losses(LossSpike(), [1.0] * 4 + [100.0])[-1] is None, "four losses are too few to judge by"


def test_losses_whose_squares_are_beyond_float64_are_judged_too() -> None:
    assert losses(LossSpike(), [1e200, 2e200, 1e200, 2e200, 1e200, 2e200]) == [None] * 6
    assert losses(LossSpike(), [1e200, 2e200, 1e200, 2e200, 1e200, 9e202])[-1] is not None


@pytest.mark.parametrize("loss", [NAN, INF])
def test_a_loss_that_is_not_finite_needs_no_history(loss: float) -> None:
    assert losses(LossSpike(), [loss]) == [f"the loss is {loss}"]


def test_other_calls_and_backwards_of_a_backward_are_no_loss() -> None:
    known = Facts({1: Extremes(NAN, NAN)})
    assert asked(LossSpike(), known, call(1, (1,)), op()) is None
    assert asked(LossSpike(), known, call(1, (1,), forward=3), op("torch.Tensor.backward", "backward")) is None


def test_a_function_of_the_users_gets_the_op_and_the_statistics() -> None:
    seen: list[Any] = []

    def ask(name: str, found: list[dict[str, Any]]) -> bool:
        seen.append((name, found))
        return bool(found) and found[0]["max"] > 3

    trigger = make_trigger(DumpConfig(path="unused", data="statistic", trigger=ask))
    known = Facts(numbers={2: {"max": 5.0}})
    assert trigger.awaits(HeldCall(1, call(1, (), 3)), known) and not trigger.awaits(HeldCall(1, call(1, (), 2)), known)
    assert asked(trigger, known, call(1, (1,), 2)) == "the trigger said so at aten::log"
    assert asked(trigger, known, call(2, (2,), None)) is None
    assert seen == [("aten::log", [{"max": 5.0}]), ("aten::log", [])]
    assert trigger.new_extremes() is None
