"""Which ops follow torch's default dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.replay import replay
from aten_dump.analysis.rerun.run_op import factory_dtype, makes_floats_of_integers
from aten_dump.dump import Call

N, X = torch.arange(4), torch.linspace(0.5, 2.0, 4)
Of = Callable[..., Call]


@pytest.fixture
def last(record: Callable[..., Any]) -> Of:
    """last(body): the last aten call of a program."""
    return lambda body: [call for call in record(body).calls if call.kind == "aten"][-1]


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        (lambda: torch.zeros(3), torch.float32),
        (lambda: torch.full((3,), 0.5), torch.float32),
        (lambda: torch.full((3,), 1), torch.int64),
        (lambda: torch.arange(3), torch.int64),
        (lambda: torch.linspace(0, 1, 3), torch.float32),
        (lambda: torch.zeros_like(N), None),
        (lambda: X.new_zeros(3), None),
        (lambda: X.sum(), None),
    ],
)
def test_a_factory_without_a_dtype_is_asked_for_the_recorded_one(
    last: Of, body: Any, dtype: torch.dtype | None
) -> None:
    assert factory_dtype(last(body), {}) == dtype


def test_numbers_drawn_under_another_default_are_drawn_again(record: Callable[..., Any]) -> None:
    def body() -> None:
        torch.set_default_dtype(torch.float64)
        try:
            torch.randn(3).exp()
        finally:
            torch.set_default_dtype(torch.float32)

    found = replay(record(body, data="tensor"))
    assert not found.suspects
    assert [(op.op, all(result.bit_equal for result in op.results)) for op in found.ops] == [
        ("aten::randn", True),
        ("aten::exp", True),
    ]


def test_a_dtype_that_was_given_stays(last: Of) -> None:
    assert factory_dtype(last(lambda: torch.zeros(3, dtype=torch.half)), {"dtype": torch.float64}) is None


@pytest.mark.parametrize(
    ("body", "is_so"),
    [
        (lambda: N / 3, True),
        (lambda: N * 0.5, True),
        (lambda: N.sqrt(), True),
        (lambda: (N > 2) * 0.5, True),
        (lambda: N * 2, False),
        (lambda: X * 2, False),
        (lambda: X * N, False),
        (lambda: torch.where(N > 2, 0.5, 0.25), False),
        (lambda: N.to(torch.float32), False),
        (lambda: torch.zeros(3), False),
    ],
)
def test_what_makes_floating_numbers_of_integers(last: Of, body: Any, is_so: bool) -> None:
    assert makes_floats_of_integers(last(body)) == is_so
