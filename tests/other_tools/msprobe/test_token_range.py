"""Which calls of a model a range of tokens turns recording on for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aten_dump.other_tools.msprobe.precision_debugger import TokenRange, range_of


def test_on_before_the_first_and_off_in_the_one_after_the_last() -> None:
    model, events = nn.Identity(), []
    tokens = TokenRange(model, 1, 2, lambda: events.append("on"), lambda: events.append("off"))
    for _ in range(2):
        tokens.begin()
        for number in range(5):
            events.append(number)
            model(torch.ones(1))
    assert events == [0, "on", 1, 2, 3, "off", 4] * 2


def test_a_range_is_two_numbers() -> None:
    assert range_of([0, 0]) == (0, 0) and range_of((2, 5)) == (2, 5)
    for wrong in ([], [1, 2, 3], ["1", "2"], [3, 2], None):
        with pytest.raises(Exception, match="two ints"):
            range_of(wrong)
