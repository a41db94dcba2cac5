"""An error in units of what an honest implementation may be off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from aten_dump.analysis.rerun.rounding_error import SUSPECT, LocalError, Rounding, measure, measure_exact

X = torch.linspace(0.5, 2.0, 256, dtype=torch.float64)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def of(
    recorded: torch.Tensor, reference: torch.Tensor, native: torch.Tensor | None = None, terms: float = 1.0
) -> LocalError:
    return measure("output.0", recorded, native, reference, Rounding(terms))


def half_unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


# -- honest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.complex64], ids=str)
def test_rounding_once_is_honest(dtype: torch.dtype) -> None:
    recorded = X.sin().to(dtype)
    found = of(recorded, X.sin() if not dtype.is_complex else X.sin().to(torch.complex128), recorded.clone())
    assert found.ratio <= 1 and found.bit_equal and found.slot == "output.0"
    assert found.error <= found.floor


def test_equal_is_no_error() -> None:
    found = of(X, X, X)
    assert (found.error, found.ratio, found.max_abs, found.at, found.bit_equal) == (0.0, 0.0, 0.0, (0,), True)
    assert not of(X, X).bit_equal, "it was not run in the recorded dtype"
    zero = of(torch.zeros(3), torch.zeros(3, dtype=torch.float64))
    assert (zero.error, zero.ratio) == (0.0, 0.0)
    empty = of(torch.empty(0), torch.empty(0, dtype=torch.float64), torch.empty(0))
    assert (empty.ratio, empty.bit_equal, empty.at) == (0.0, True, (0,))


def test_sums_of_many_terms_may_be_off_by_the_root_of_their_number() -> None:
    off = X * (1 + 40 * half_unit(torch.float32))
    assert of(off.float(), X).ratio > SUSPECT
    assert of(off.float(), X, terms=1 << 14).ratio <= 1


def test_what_the_same_op_is_off_here_is_allowed() -> None:
    off = X * (1 + 40 * half_unit(torch.float32))
    alike = X * (1 - 40 * half_unit(torch.float32))
    found = of(off.float(), X, alike.float())
    assert found.ratio <= SUSPECT and not found.bit_equal


def test_why_a_floor_is_what_it_is_is_said() -> None:
    assert of(X.float(), X).reason == "rounding to float32"
    assert of(X.float(), X, terms=1 << 14).reason == "rounding to float32 of sums of 16384 terms"
    assert of(X.bfloat16(), X, terms=4.0).reason == "rounding to bfloat16", "sums in float32 are finer"
    alike = X * (1 - 40 * half_unit(torch.float32))
    assert of(X.float(), X, alike.float()).reason == "what the same op in float32 is off on this machine"


# -- wrong ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scale_of_a_hundredth_is_found(dtype: torch.dtype) -> None:
    found = of((X * 1.01).to(dtype), X, X.to(dtype))
    assert found.ratio > SUSPECT
    assert found.error == pytest.approx(0.01, rel=0.3)


def test_a_slope_below_the_rounding_of_bfloat16_is_found() -> None:
    many = torch.linspace(1.0, 3.0, 1 << 14, dtype=torch.float64)
    assert of((many * 1.001).bfloat16(), many, many.bfloat16()).ratio > SUSPECT
    assert of(many.bfloat16(), many, many.bfloat16()).ratio <= 1
    few = torch.linspace(1.0, 3.0, 40, dtype=torch.float64)
    assert of((few * 1.001).bfloat16(), few, few.bfloat16()).ratio <= SUSPECT, "too few elements tell"
    flat = torch.full((1 << 14,), 1.3, dtype=torch.float64)
    assert of(flat.bfloat16(), flat, flat.bfloat16()).ratio <= SUSPECT, "one value, rounded alike throughout"


def test_one_wrong_element_among_many_is_found() -> None:
    many = torch.linspace(1.0, 2.0, 1 << 20, dtype=torch.float64)
    recorded = many.float()
    recorded[777_777] *= 1.001
    found = of(recorded.view(1024, 1024), many.view(1024, 1024))
    assert found.ratio > SUSPECT
    assert found.at == divmod(777_777, 1024)
    assert found.max_abs == pytest.approx(1e-3 * float(many[777_777]), rel=1e-3)


def test_a_small_element_is_held_against_its_own_size() -> None:
    values = torch.cat([torch.full((10,), 1.0), torch.tensor([1e-4])]).double()
    recorded = values.float()
    recorded[-1] *= 1.1
    assert of(recorded, values).ratio > SUSPECT


def test_nothing_is_told_apart_below_the_smallest_numbers() -> None:
    tiny = torch.full((8,), 1e-40, dtype=torch.float64)
    assert of(torch.zeros(8), tiny).ratio <= 1, "flushed to zero"
    half = torch.full((8,), 2.0**-24, dtype=torch.float64)
    assert of(torch.zeros(8).half(), half).ratio <= 1
    assert of(torch.zeros(8).half(), half * 64).ratio > SUSPECT, "subnormals of float16 matter"


# -- NaN and Inf ---------------------------------------------------------------------------------------------------


def test_nonfinite_elements_must_be_at_the_same_places() -> None:
    nan, inf = math.nan, math.inf
    values = torch.tensor([1.0, nan, inf, -inf], dtype=torch.float64)
    assert of(values.float(), values).ratio == 0.0
    for wrong in ([nan, nan, inf, -inf], [1.0, 2.0, inf, -inf], [1.0, nan, -inf, -inf], [1.0, nan, nan, -inf]):
        assert of(torch.tensor(wrong), values).ratio == math.inf
    broken = torch.tensor([nan, nan, inf, -inf])
    assert of(broken, values, broken.clone()).ratio <= 1, "the same op here has none either"
    assert of(broken, values, values.float()).ratio == math.inf


def test_beyond_the_range_of_the_dtype_is_inf() -> None:
    large = torch.tensor([1e5, 1.0], dtype=torch.float64)
    assert of(large.half(), large).ratio <= 1
    assert of(torch.tensor([65504.0, 1.0]).half(), large).ratio == math.inf


# -- exact results -------------------------------------------------------------------------------------------------


def test_masks_and_indices_must_be_equal() -> None:
    index = torch.arange(6).view(2, 3)
    same = measure_exact("output.1", index, index.clone())
    assert (same.ratio, same.error, same.bit_equal, same.slot) == (0.0, 0.0, True, "output.1")
    other = index.clone()
    other[1, 0] = 9
    found = measure_exact("output.1", other, index)
    assert (found.error, found.max_abs, found.at, found.bit_equal) == (1 / 6, 6.0, (1, 0), False)
    assert found.ratio > SUSPECT


def test_one_index_of_very_many_may_be_that_of_an_equal_value() -> None:
    index = torch.zeros(10_000, dtype=torch.int64)
    one = index.clone()
    one[5] = 1
    assert measure_exact("", one, index).ratio == SUSPECT / 2
    one[:50] = 1
    assert measure_exact("", one, index).ratio == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(()), 0),
        (0, torch.zeros(())),
        (3, 4),
        (True, None),
        (1.0, math.nan),
    ],
)
def test_what_cannot_be_the_same(recorded: Any, replayed: Any) -> None:
    found = measure_exact("", recorded, replayed)
    assert (found.error, found.ratio, found.bit_equal) == (1.0, math.inf, False)


@pytest.mark.parametrize("item", [3, True, None, "x", 2.5, math.nan])
def test_plain_results(item: Any) -> None:
    found = measure_exact("", item, item)
    assert (found.error, found.ratio, found.bit_equal) == (0.0, 0.0, True)


def test_quantized_and_sparse_results_are_compared_by_their_elements() -> None:
    one = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.qint8)
    other = torch.quantize_per_tensor(torch.tensor([1.0, 2.5]), 0.1, 0, torch.qint8)
    assert measure_exact("", one, one).bit_equal and measure_exact("", one, other).error == 0.5
    sparse = torch.tensor([[0, 3], [0, 0]]).to_sparse()
    assert measure_exact("", sparse, sparse.clone()).bit_equal
    assert measure_exact("", sparse, (sparse * 2)).max_abs == 3.0


def test_what_is_rounded_on_the_way_may_be_off_by_as_much() -> None:
    """Some processors round the scores of attention in bfloat16 before they make statistics in float32 of them."""
    recorded = X.bfloat16().float()
    plain, rounded = (measure("output.1", recorded, None, X, Rounding(dtype=dtype)) for dtype in (None, torch.bfloat16))
    assert plain.ratio > SUSPECT and rounded.ratio <= 1
    assert (plain.reason, rounded.reason) == ("rounding to float32", "rounding to bfloat16")
