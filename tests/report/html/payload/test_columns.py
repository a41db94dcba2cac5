"""Columns come back as they went in, and decimals show the digits of the command line."""

from __future__ import annotations

import math
import random

import pytest

from aten_dump.report.html.payload.columns import Section, decimal
from aten_dump.report.units import format_number
from tests.report.sections_read import Read


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(
    "numbers", [[], [0], [255, 256, 0], [-1, 5, -300], [2**40, -(2**40), 3], [1 << 23, 1 << 24, (1 << 52) - 1]]
)
def test_integers_come_back(numbers: list[int], delta: bool) -> None:
    section = Section()
    section.add_integers("x", numbers, delta=delta)
    section.add_integers("after", [7])
    read = Read(section.pack())
    assert read.columns["x"] == numbers
    assert read.columns["after"] == [7]


def test_a_column_takes_no_more_bytes_than_its_greatest_needs() -> None:
    section = Section()
    section.add_integers("x", [200] * 1000)
    section.add_integers("y", range(100_000, 101_000), delta=True)
    assert len(section.pack()) < 1000 + 3000 + 200


def numbers() -> list[float]:
    draw = random.Random(3)
    return [draw.uniform(-1, 1) * 10 ** draw.randint(-40, 38) for _ in range(2000)] + [
        0.0, -0.0, 1.0, 999999.5, 1e-4, 9.9999951e-5, 123456.0, 1e6, 5e-324, 1.7976931348623157e308, 0.1 + 0.2,
    ]  # fmt: skip


def test_decimals_have_the_digits_that_the_command_line_prints() -> None:
    section = Section()
    section.add_decimals("x", numbers())
    for number, shown in zip(numbers(), Read(section.pack()).numbers("x"), strict=True):
        assert shown is not None
        assert format_number(shown) == format_number(number)


def test_what_is_no_finite_number_stays_what_it_is() -> None:
    section = Section()
    section.add_decimals("x", [None, math.nan, math.inf, -math.inf, 1 + 2j, 2**60, 12345678])
    found = Read(section.pack()).numbers("x")
    assert found[0] is None
    assert found[1] != found[1]
    assert found[2:5] == [math.inf, -math.inf, None]
    assert found[5] == pytest.approx(2**60, rel=1e-5)
    assert found[6] == 12345678


def test_integers_are_exact() -> None:
    assert decimal(4_000_000_123) == (4_000_000_123, 0)
