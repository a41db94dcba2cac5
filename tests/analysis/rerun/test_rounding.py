"""What rounding costs an op: terms that are summed up, and the dtype on the way."""

from __future__ import annotations

import pytest

from aten_dump.analysis.rerun.rounding_error import terms_of


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "terms"),
    [
        ("aten::sum", [64], 1, 64.0),
        ("aten::sum", [64], 16, 4.0),
        ("aten::add.Tensor", [64, 64], 64, 1.0),
        ("aten::expand", [4], 64, 1.0),
        ("aten::mm", [6 * 10, 10 * 7], 6 * 7, 10.0),
        ("aten::addmm", [7, 6 * 10, 10 * 7], 6 * 7, 10.0),
        ("aten::mm", [64], 16, 4.0),
        ("aten::mul.Tensor", [60, 70], 42, 70 / 42),
        ("aten::ones", [], 64, 1.0),
        ("aten::sum", [64], 0, 1.0),
        ("aten::mm", [0, 0], 4, 1.0),
    ],
)
def test_how_many_terms(op: str, inputs: list[int], outputs: int, terms: float) -> None:
    assert terms_of(op, inputs, outputs) == pytest.approx(terms)
