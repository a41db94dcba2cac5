"""How far values may be apart that nothing proves the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump.analysis.by_distance.result_judge import ControlLimits, Estimator
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.judgement import Inputs, Judgement
from aten_dump.analysis.evidence.noise_floors import Limits, distance, limits_of
from aten_dump.dump import Call, Value
from tests.analysis.by_hand import EQUAL, ROUNDOFF, apart, inputs, one_call

TABLE = 5.5 * ROUNDOFF  # of float32 and one term: half a rounding more than one, and four of the accumulator
FOUR = torch.arange(4.0)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Call]:
    count = iter(range(100))

    def call(op: str = "aten::add.Tensor", given: Any = (FOUR, FOUR), results: Any = (FOUR + FOUR,)) -> Call:
        return one_call(tmp_path / str(next(count)), op, given, results)

    return call


def of(call: Call, close: Closeness, given: Inputs, control: ControlLimits | None = None) -> Judgement:
    """Judge the result of a call against itself, so far apart."""
    result = call.outputs
    return Estimator(control).result(call, "output.0", (result, result, close), given)


def brief(said: Judgement) -> tuple[str, bool, str]:
    return said.status, said.guilty, said.floor_from


# -- with equal inputs: the table ----------------------------------------------------------------------------------


def test_the_table_allows_a_rounding_and_no_more(make: Callable[..., Call]) -> None:
    call = make()
    least = of(call, apart(TABLE), inputs("same"))
    assert brief(least) == ("within", False, "dtype")
    assert (least.floor, least.ratio) == (TABLE, 1.0)
    more = of(call, apart(TABLE * 1.01), inputs("same"))
    assert brief(more) == ("different", True, "dtype")
    assert more.ratio == pytest.approx(1.01)


def test_one_element_is_held_against_the_table_too(make: Callable[..., Call]) -> None:
    call = make()
    assert of(call, apart(0.0, max_scaled=10.5 * ROUNDOFF), inputs("same")).status == "within"
    assert of(call, apart(0.0, max_scaled=10.6 * ROUNDOFF), inputs("same")).status == "different"


def test_statistics_are_held_against_the_norm_alone(make: Callable[..., Call]) -> None:
    call = make()
    for error, status in ((None, "within"), (0.0, "within"), (TABLE, "within"), (TABLE * 1.01, "different")):
        assert of(call, Closeness("statistic", error=error), inputs("same")).status == status
    assert of(call, Closeness("statistic"), inputs("within")).ratio == 0.0


def test_sums_of_many_terms_may_be_off_by_more(make: Callable[..., Call]) -> None:
    many = torch.ones(64)
    call = make("aten::sum", (many,), (many.sum(),))
    limit = (1.5 + 4.0 * 8.0) * ROUNDOFF
    assert of(call, apart(limit), inputs("same")).floor == pytest.approx(limit)
    assert of(call, apart(limit * 1.01), inputs("same")).status == "different"


@pytest.mark.parametrize(
    ("worst", "guilty"), [("same", True), ("within", True), ("unknown", False), ("different", False)]
)
def test_nan_at_other_places_differ_whatever_else_is_equal(make: Callable[..., Call], worst: Any, guilty: bool) -> None:
    close = apart(0.0, nonfinite=1, exact=0.75)
    assert brief(of(make(), close, inputs(worst, depth=50, error=1.0))) == ("different", guilty, "exact")


# -- behind noise: a bound -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 3, 8])
def test_the_bound_grows_with_the_root_of_the_depth(make: Callable[..., Call], depth: int) -> None:
    call, limit = make(), 2.0 * TABLE * math.sqrt(1 + depth)
    at = of(call, apart(limit * 0.999), inputs("within", depth=depth))
    assert brief(at) == ("within", False, "depth")
    assert at.floor == pytest.approx(limit)
    assert brief(of(call, apart(limit * 1.001), inputs("within", depth=depth))) == ("different", True, "depth")


@pytest.mark.parametrize("worst", ["unknown", "different"])
def test_nobody_is_guilty_behind_inputs_that_do_not_agree(make: Callable[..., Call], worst: Any) -> None:
    assert brief(of(make(), apart(0.5), inputs(worst))) == ("different", False, "depth")


def test_an_error_of_the_inputs_may_become_eight_times_larger(make: Callable[..., Call]) -> None:
    call, given = make(), inputs("within", error=1e-3)
    assert of(call, apart(8e-3), given).status == "within"
    assert of(call, apart(8e-3 + TABLE), given).ratio == pytest.approx(1.0)
    assert of(call, apart(8.1e-3), given).status == "different"


def test_a_square_of_pure_noise_is_off_by_the_square(make: Callable[..., Call]) -> None:
    call, given = make(), inputs("within", error=1e3)
    assert of(call, apart(1e6), given).status == "within"
    assert of(call, apart(1.1e6), given).status == "different"


def test_what_is_made_of_equal_statistics_is_off_by_one_rounding_however_deep(make: Callable[..., Call]) -> None:
    half = torch.ones(4, dtype=torch.bfloat16)
    call = make(given=(half, half), results=(half + half,))
    few, deep = Closeness("statistic", error=2.4 * 2.0**-9), inputs("within", depth=100)
    assert brief(of(call, few, deep)) == ("within", False, "dtype")
    more = Closeness("statistic", error=0.02)
    assert brief(of(call, more, deep)) == ("different", True, "dtype")
    assert of(call, more, inputs("within", error=1e-4, depth=100)).status == "within"
    assert of(call, apart(0.02), deep).status == "within"  # equal bits are told by themselves


def test_sums_that_cancel_may_be_as_large_as_the_noise_of_their_terms(make: Callable[..., Call]) -> None:
    many = torch.ones(16)
    call, given = make("aten::sum", (many,), (many.sum(),)), inputs("within", noise=1e-3)
    said = of(call, apart(0.9, rmse=8 * 1e-3 * 4.0), given)
    assert brief(said) == ("within", False, "depth")
    assert said.note == "as large as noise that is summed"
    assert of(call, apart(0.9, rmse=8 * 1e-3 * 4.0 * 1.01), given).status == "different"
    assert of(call, Closeness("statistic", error=0.9), given).status == "different", "nothing is known of its size"


def test_a_quotient_of_noise_is_not_called_wrong(make: Callable[..., Call]) -> None:
    for op in ("aten::div.Tensor", "aten::rsqrt", "aten::pow.Tensor_Scalar", "aten::log"):
        call = make(op)
        said = of(call, apart(0.9), inputs("within"))
        assert (said.status, said.guilty) == ("within", False)
        assert said.ratio is not None and said.ratio > 1
        assert "only a replay can decide" in said.note
        assert of(call, apart(0.9), inputs("different")).status == "different"
        assert of(call, apart(0.9), inputs("same")).status == "different", "of equal inputs the quotient is known"
        assert of(call, apart(TABLE), inputs("within")).note == "", "it is within the bound anyhow"
    assert brief(of(make("aten::mul.Tensor"), apart(0.9), inputs("within"))) == ("different", True, "depth")


# -- a control dump ------------------------------------------------------------------------------------------------


def test_four_times_the_distance_of_the_control_is_allowed(make: Callable[..., Call]) -> None:
    asked = []

    def control(call: Call, slot: str) -> Limits | None:
        asked.append((call.op, slot))
        return Limits(1e-3, 1e-2)

    call = make()
    said = of(call, apart(4e-3, max_scaled=4e-2), inputs("within"), control)
    assert brief(said) == ("within", False, "control")
    assert (said.floor, said.ratio) == (4e-3, 1.0)
    assert asked == [("aten::add.Tensor", "output.0")]
    assert brief(of(call, apart(4.1e-3), inputs("within"), control)) == ("different", True, "control")
    assert of(call, apart(0.0, max_scaled=4.1e-2), inputs("same"), control).status == "different"
    assert brief(of(call, apart(1.0), inputs("different"), control)) == ("different", False, "control")


def test_a_control_that_is_equal_leaves_the_table(make: Callable[..., Call]) -> None:
    said = of(make(), apart(TABLE), inputs("within"), lambda call, slot: Limits(0.0, 0.0))
    assert (brief(said), said.floor) == (("within", False, "control"), TABLE)
    assert brief(of(make(), apart(TABLE), inputs("same"), lambda call, slot: None)) == ("within", False, "dtype")


# -- masks, indices, counts ----------------------------------------------------------------------------------------


@pytest.fixture
def mask(make: Callable[..., Call]) -> Call:
    return make("aten::gt.Scalar", (FOUR, 1), (FOUR > 1,))


def test_noise_may_turn_a_tenth_of_a_mask(mask: Call) -> None:
    said = of(mask, apart(0.3, exact=0.9), inputs("within"))
    assert brief(said) == ("within", False, "depth")
    assert said.note == "noise in the inputs turned some elements"
    assert brief(of(mask, apart(0.3, exact=0.89), inputs("within"))) == ("different", True, "exact")


@pytest.mark.parametrize(("worst", "guilty"), [("same", True), ("unknown", False), ("different", False)])
def test_without_noise_a_mask_is_exact(mask: Call, worst: Any, guilty: bool) -> None:
    said = of(mask, apart(0.3, exact=0.99), inputs(worst))
    assert brief(said) == ("different", guilty, "exact")
    assert (said.floor, said.ratio) == (0.0, math.inf)


def test_equal_statistics_of_a_mask_are_as_good_as_it_gets(mask: Call) -> None:
    equal = Closeness("statistic", error=0.0, reason="equal statistics")
    said = of(mask, equal, inputs("same"))
    assert (brief(said), said.note) == (("within", False, "depth"), "equal statistics")
    assert of(mask, Closeness("statistic", error=0.1), inputs("same")).status == "different"


def test_a_float_against_an_integer_is_exact(make: Callable[..., Call], mask: Call) -> None:
    number = make().outputs
    for compared in ((number, mask.outputs), (mask.outputs, number)):
        said = Estimator(None).result(mask, "output.0", (*compared, apart(1e-9, exact=0.99)), inputs("same"))
        assert brief(said) == ("different", True, "exact")


# -- two values by themselves --------------------------------------------------------------------------------------


def values(make: Callable[..., Call], *dtypes: torch.dtype) -> list[Value]:
    return [make(results=(FOUR.to(dtype),)).outputs for dtype in dtypes]


def test_the_coarser_dtype_sets_the_limits(make: Callable[..., Call]) -> None:
    single, half, brain, index = values(make, torch.float32, torch.float16, torch.bfloat16, torch.int64)
    assert limits_of(single, brain) == limits_of(brain, single) == Limits.of(torch.bfloat16)
    assert limits_of(half, brain) == Limits.of(torch.bfloat16)
    assert limits_of(single, half) == Limits.of(torch.float16)
    assert limits_of(single, single) == Limits(TABLE, 10.5 * ROUNDOFF)
    assert limits_of(index, single) == limits_of(single, index) == Limits(0.0, 0.0)


def test_the_distance_over_its_limit(make: Callable[..., Call]) -> None:
    one, index = values(make, torch.float32, torch.int64)
    for depth in (0, 3):
        limit, ratio = distance(one, one, apart(1e-3), depth)
        assert limit == pytest.approx(2 * TABLE * math.sqrt(1 + depth))
        assert ratio == pytest.approx(1e-3 / limit)
    assert distance(one, one, apart(4e-3), 3, 1e-3) == pytest.approx((8e-3, 0.5))
    assert distance(one, one, Closeness("tensor", error=None), 0)[1] == 0.0
    assert distance(index, index, apart(1e-9), 9, 1.0) == (0.0, math.inf), "indices allow nothing"
    assert distance(one, index, apart(1e-9), 9, 1.0) == distance(index, one, apart(1e-9), 9, 1.0) == (0.0, math.inf)
    assert distance(index, index, apart(0.0), 9) == distance(index, index, Closeness("tensor"), 9) == (0.0, 0.0)
    assert distance(one, one, Closeness("none", shape=((4,), (5,))), 0, 1.0) == (0.0, math.inf)
    assert distance(one, one, Closeness("tensor", metrics=EQUAL, error=0.0, nonfinite=True), 0, 1.0) == (0.0, math.inf)
