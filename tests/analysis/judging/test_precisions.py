"""That one side computes in a coarser precision is said, as what differs by it counts as rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump import compare
from aten_dump.analysis.judging.precisions import calls_by_dtype, precision_notes

X = torch.linspace(0.1, 2.0, 12).view(3, 4)


def _coarse() -> None:
    (X.bfloat16() @ X.t().bfloat16()).float().exp()


def _plain() -> None:
    (X @ X.t()).exp()


def test_a_product_in_bfloat16_is_told(record: Callable[..., Any]) -> None:
    coarse, plain = record(_coarse, data="tensor"), record(_plain, data="tensor")
    told = "computes in bfloat16 (3 calls, Aten._to_copy.0.forward the first), the"
    found = compare(coarse, plain)
    assert found.exit_code == 0
    assert f"Note: the target {told} baseline does not" in found.answer()
    assert list(precision_notes(plain, coarse)) == [
        f"the baseline {told} target does not: what differs by that counts as rounding"
    ]
    assert list(precision_notes(coarse, coarse)) == list(precision_notes(plain, plain)) == []
    assert [call.name for call in calls_by_dtype(plain)[torch.float32]] == [
        "Aten.t.0.forward",
        "Aten.mm.0.forward",
        "Aten.exp.0.forward",
    ]
