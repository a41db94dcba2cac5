"""Which elements of a call's results come out otherwise with other bytes in memory that nothing had written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.rerun.undefined_elements import DEPENDS, MAY_DEPEND, undefined_elements
from aten_dump.errors import ReplayError

H = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
Told = Callable[..., dict[str, list[Any]]]


@pytest.fixture
def told(record: Callable[..., Any]) -> Told:
    """told(body, name): what is told of the results of one call of a program, by slot.

    `unwritten` tells it of the bytes of one of its inputs.
    """

    def run(body: Callable[[], object], name: str, unwritten: Any = None, given: int = 0) -> dict[str, list[Any]]:
        call = record(body)[name]
        value = call.input_values()[given][1]
        bytes = {} if unwritten is None else {(value.storage, value.version): unwritten}
        return {slot: found.tolist() for slot, found in undefined_elements(call, bytes).items()}

    return run


def test_an_indexed_write_defines_what_it_writes(told: Told) -> None:
    def body() -> None:
        torch.empty_like(H).index_put_((torch.tensor([2, 0]),), H[:2])

    wanted = [[0, 0], [DEPENDS] * 2, [0, 0]]
    assert told(body, "Aten.index_put_.0.forward") == {"output.0": wanted, "mutated.self": wanted}


def test_a_permutation_defines_all(told: Told) -> None:
    order = torch.tensor([2, 0, 1])
    found = told(lambda: torch.empty_like(order).scatter_(0, order, torch.arange(3)), "Aten.scatter_.0.forward")
    assert found["output.0"] == [0, 0, 0]


def test_rows_that_are_normalized_do_depend_on_what_was_in_them(told: Told) -> None:
    found = told(lambda: torch.nn.functional.layer_norm(torch.empty(2, 4), (4,)), "Aten.native_layer_norm.0.forward")
    assert found["output.0"] == [[DEPENDS] * 4] * 2


def test_who_asks_for_the_shape_alone_depends_on_nothing(told: Told) -> None:
    assert told(lambda: torch.ones_like(torch.empty(3)), "Aten.ones_like.0.forward")["output.0"] == [0, 0, 0]


def test_zero_times_it_depends_on_it_if_it_was_nan(told: Told) -> None:
    zeros = torch.tensor([0.0, 1.0])

    def body(lies: float) -> Callable[[], object]:
        def run() -> None:
            torch.full((2,), lies).mul(zeros)

        return run

    unwritten = torch.full((8,), DEPENDS, dtype=torch.uint8)
    for lies, first in ((7.0, MAY_DEPEND), (math.inf, DEPENDS)):
        assert told(body(lies), "Aten.mul.0.forward", unwritten)["output.0"] == [first, DEPENDS]


def test_bytes_that_may_count_are_what_was_recorded_unless_they_are_nan(told: Told) -> None:
    unwritten = torch.full((12,), MAY_DEPEND, dtype=torch.uint8)
    found = told(lambda: torch.tensor([1.0, 2.0, 3.0]).exp(), "Aten.exp.0.forward", unwritten)
    assert found["output.0"] == [MAY_DEPEND] * 3


def test_an_index_out_of_range_cannot_be_told(told: Told) -> None:
    unwritten = torch.full((16,), DEPENDS, dtype=torch.uint8)
    with pytest.raises(ReplayError, match="indices has values from"):
        told(lambda: H[torch.tensor([0, 1])], "Aten.index.0.forward", unwritten, 1)
