"""What the numbers suggest of a call that made NaN or Inf."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump.analysis.nonfinite.explanations import Slot, explain, explain_scaled
from aten_dump.analysis.nonfinite.value_range import Contents, greatest_of
from aten_dump.dump import Call
from aten_dump.dump.loss_scale import LossScale
from tests.analysis.by_hand import one_call

X = torch.ones(2)


@pytest.fixture
def why(tmp_path: Path) -> Callable[..., str]:
    """why(op, inputs, bad): the explanation; inputs are (low, high)."""
    count = iter(range(1000))

    def of(op: str, *ranges: tuple[float | None, float | None], made: Slot | None = None, **options: Any) -> str:
        call = one_call(tmp_path / str(next(count)), op, (X,), (X,))
        inputs = [Slot(f"input.{n}", n, "float32", Contents(2, 0, 0, 0, *ends)) for n, ends in enumerate(ranges)]
        given, undefined = options.get("given", []), options.get("undefined", False)
        return explain(call, inputs, [made or nan()], given, undefined).text

    return of


Why = Callable[..., str]


def nan() -> Slot:
    return Slot("output.0", 9, "float32", Contents(2, 1, 0, 0, None, None))


def inf(dtype: str = "float32", sign: int = 1) -> Slot:
    return Slot("output.0", 9, dtype, Contents(2, 0, int(sign > 0), int(sign < 0), None, None))


def test_what_came_from_other_ranks_or_nowhere_goes_first(why: Why) -> None:
    assert why("c10d::allreduce_", (0.0, 0.0)).startswith("a collective: another rank sent it")
    assert why("aten::div.Tensor", (0.0, 0.0), given=[nan()]).startswith("it makes NaN of a mask")
    assert why("aten::div.Tensor", (0.0, 0.0), undefined=True).startswith(
        "it depends on memory that nothing had written"
    )
    assert why("aten::div.Tensor", given=[nan()], undefined=True).startswith("it makes NaN of a mask")


@pytest.mark.parametrize(
    ("ends", "is_zero"),
    [
        ((0.0, 1.0), True),
        ((-1.0, 0.0), True),
        ((-1.0, 1.0), True),
        ((0.0, None), True),
        ((None, None), True),
        ((1e-30, 1.0), False),
        ((-2.0, -1.0), False),
    ],
)
def test_a_division_by_zero(why: Why, ends: Any, is_zero: bool) -> None:
    for op in ("aten::div.Tensor", "aten::div_.Tensor", "aten::reciprocal", "aten::_foreach_div.List", "aten::addcdiv"):
        assert (why(op, (5.0, 6.0), ends) == "a division by zero: 0/0") == is_zero, op
        assert (why(op, (5.0, 6.0), ends, made=inf()) == "a division by zero") == is_zero
    assert why("aten::div.Scalar").startswith("a division by zero"), "nothing is known of the divisor"


@pytest.mark.parametrize(
    ("op", "low", "said"),
    [
        ("aten::log", 0.0, "a logarithm of zero or less"),
        ("aten::log2", -1.0, "a logarithm of zero or less"),
        ("aten::log10_", None, "a logarithm of zero or less"),
        ("aten::log", 1e-30, None),
        ("aten::log1p", -1.0, "a logarithm of zero or less: log1p of -1 or less"),
        ("aten::log1p", -0.9, None),
        ("aten::sqrt", -1e-30, "a square root of a negative number"),
        ("aten::sqrt", 0.0, None),
        ("aten::rsqrt", 0.0, "an inverse square root of zero or less"),
        ("aten::rsqrt", 1e-30, None),
        ("aten::pow.Tensor_Scalar", 0.0, "a power that has no result"),
        ("aten::pow.Tensor_Scalar", 0.5, None),
        ("aten::acos", 0.5, "an argument outside of [-1, 1]"),
        ("aten::atanh", 9.0, "an argument outside of [-1, 1]"),
        ("aten::_foreach_sqrt", -1.0, "a square root of a negative number"),
        ("aten::add.Tensor", -1.0, None),
    ],
)
def test_arguments_that_have_no_result(why: Why, op: str, low: float | None, said: str | None) -> None:
    found = why(op, (low, 1.0))
    assert found.startswith(said or "an operation that has no result")


def test_the_least_of_all_inputs_counts(why: Why) -> None:
    assert why("aten::log", (2.0, 3.0), (-1.0, 3.0)).startswith("a logarithm")
    assert not why("aten::log", (2.0, 3.0), (1.0, 3.0)).startswith("a logarithm")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aten::mean", "a mean over no element"),
        ("aten::nll_loss_forward", "a mean over no element: every target is ignored"),
        ("aten::var.correction", "a variance of too few elements"),
        ("aten::std.correction", "a deviation of too few elements"),
        ("aten::native_layer_norm", "the variance of a row or channel is zero, and eps is too"),
        ("aten::_fused_rms_norm", "the variance of a row or channel is zero, and eps is too"),
    ],
)
def test_nan_that_reductions_make_of_finite_inputs(why: Why, op: str, said: str) -> None:
    assert why(op, (1.0, 2.0)) == said
    assert why(op, (1.0, 2.0), made=inf()).startswith("overflow of float32"), "Inf is another matter"


def test_an_overflow_names_the_limit_and_the_greatest_input(why: Why) -> None:
    assert why("aten::mul.Tensor", (-300.0, 2.0), (None, 7.0), made=inf("float16")) == (
        "overflow of float16, whose greatest number is 65504; the greatest input is 300"
    )
    assert "greatest input is 0" in why("aten::exp", made=inf())
    assert why("aten::mul.Tensor", (1.0, 2.0), made=inf("float32", -1)).startswith("overflow of float32")
    assert why("aten::sub.Tensor", (1.0, 2.0)) == "an operation that has no result: 0/0, or inf - inf on the way"


@pytest.mark.parametrize(
    ("dtype", "greatest"),
    [("float16", 65504.0), ("complex64", torch.finfo(torch.float32).max), ("int64", math.inf), ("unknown", math.inf)],
)
def test_the_greatest_number_of_a_dtype(dtype: str, greatest: float) -> None:
    assert greatest_of(dtype) == greatest


# -- under a gradient scaler ---------------------------------------------------------------------------------------


def scaled(call: Call, **changes: Any) -> str | None:
    known: dict[str, Any] = {"scale": 1024.0, "found_inf": True, "next_scale": 512.0}
    given = changes.pop("given", (Slot("input.0", 1, "float16", Contents(2, 0, 0, 0, -6e4, 9.0)),))
    bad = changes.pop("bad", (inf("float16"),))
    why, written_by = changes.pop("why", "overflow of float16"), changes.pop("written_by", "")
    return explain_scaled(why, bad, given, LossScale(call, **(known | changes)), written_by)


def test_inf_that_the_scale_made_is_no_fault(tmp_path: Path) -> None:
    call = one_call(tmp_path / "dump", "aten::mul.Tensor", (X,), (X,))
    assert scaled(call) == (
        "overflow of float16; under a loss scale of 1024: the gradient scaler found it and skipped the optimizer's step"
        "; the next scale is 512"
    )
    assert (scaled(call, next_scale=None) or "").endswith("skipped the optimizer's step")
    assert (scaled(call, written_by="Aten.add_.0.optimizer") or "").endswith(
        "found it, but the optimizer's step ran: Aten.add_.0.optimizer wrote what came of it to memory that is left"
    )
    for changes in (
        {"found_inf": False},
        {"found_inf": None},
        {"scale": None},
        {"scale": 1.0},
        {"why": "a division by zero"},
        {"bad": (nan(),)},
        {"given": (Slot("input.0", 1, "float16", Contents(2, 0, 0, 0, None, 65504.0 * 1025)),)},
    ):
        assert scaled(call, **changes) is None, changes
    at = (Slot("input.0", 1, "float16", Contents(2, 0, 0, 0, None, 65504.0 * 1024)),)
    assert scaled(call, given=at) is not None
    assert scaled(call, given=()) is not None
