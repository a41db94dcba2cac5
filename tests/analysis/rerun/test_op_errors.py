"""What an op itself is off: recorded results against a replay, each side by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.rerun import op_errors
from aten_dump.analysis.rerun.op_errors import OwnError, Replays, attempt, draws_otherwise, measured
from aten_dump.analysis.rerun.rounding_error import SUSPECT, LocalError
from aten_dump.dump import Call
from aten_dump.errors import ReplayError
from aten_dump.store import records as r

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
CPU = torch.device("cpu")


Make = Callable[..., Call]


def errors(call: Call) -> dict[str, LocalError]:
    found = Replays().errors(call)
    assert isinstance(found, dict), found
    return found


def test_a_right_result_and_a_wrong_one(make: Make) -> None:
    right, wrong = make("aten::add.Tensor", (X, Y), X + Y), make("aten::add.Tensor", (X, Y), (X + Y) * 1.01)
    assert errors(right)["output.0"].ratio <= 1
    assert errors(wrong)["output.0"].ratio > SUSPECT
    assert errors(wrong)["output.0"].error == pytest.approx(0.01, rel=1e-4)


def test_both_sides_each_by_itself(make: Make) -> None:
    right, wrong = make("aten::add.Tensor", (X, Y), X + Y), make("aten::add.Tensor", (X, Y), (X + Y) * 1.01)
    found = Replays().local_errors(wrong, right)
    assert isinstance(found, dict)
    own = found["output.0"]
    assert own.ratio > 1 >= own.baseline_ratio
    assert own.floor == SUSPECT * own.target.floor
    other = Replays().local_errors(right, wrong)
    assert isinstance(other, dict) and other["output.0"].baseline_ratio > 1 >= other["output.0"].ratio


def test_ratios_are_over_what_is_suspect() -> None:
    one, other = (LocalError("", 0.5, 0.25, ratio, 0.0, (), False) for ratio in (2 * SUSPECT, SUSPECT))
    assert (OwnError(one, other).ratio, OwnError(one, other).baseline_ratio, OwnError(one, other).floor) == (2, 1, 1)


def test_only_results_of_both_sides_are_told(make: Make) -> None:
    two = make("aten::max.dim", (X.view(2, 2), 1), torch.tensor([2.0, 4.0]), torch.tensor([1, 1]))
    one = make("aten::max", (X,), torch.tensor(4.0))
    found = Replays().local_errors(two, one)
    assert isinstance(found, dict) and list(found) == ["output.0"]


def test_why_there_is_none(make: Make) -> None:
    right, unknown = make("aten::add.Tensor", (X, Y), X + Y), make("nolib::add", (X, Y), X + Y)
    assert Replays(enabled=False).local_errors(right, right) == "replay is switched off"
    for pair in ((right, unknown), (unknown, right)):
        why = Replays().local_errors(*pair)
        assert isinstance(why, str) and "nolib" in why
    bare = make("aten::add.Tensor", (X, Y), X + Y, store=None)
    assert isinstance(Replays().errors(bare), str)
    shaped = make("aten::add.Tensor", (X, Y), X[:2])
    assert Replays().errors(shaped) == "output.0 was recorded with shape (2,), replay gave (4,)"
    assert isinstance(Replays().errors(make("aten::mm", (X, Y), X)), str), "it raises"


def test_large_calls_are_left_to_the_command(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    right = make("aten::add.Tensor", (X, Y), X + Y)
    for most, refused in ((3 * 4 * 8, False), (3 * 4 * 8 - 1, True)):
        monkeypatch.setattr(op_errors, "REPLAY_BYTES", most)
        why = Replays().errors(right)
        assert isinstance(why, str) == refused
        assert not refused or "aten-dump replay" in str(why)


def test_each_call_is_replayed_once(make: Make) -> None:
    replays, call = Replays(), make("aten::add.Tensor", (X, Y), X + Y)
    assert replays.errors(call) is replays.errors(call)


def test_masks_are_compared_exactly(make: Make) -> None:
    right, wrong = make("aten::gt.Scalar", (X, 2), X > 2), make("aten::gt.Scalar", (X, 2), X > 3)
    assert errors(right)["output.0"].ratio == 0.0
    assert (errors(wrong)["output.0"].ratio > SUSPECT, errors(wrong)["output.0"].error) == (True, 0.25)


def test_workspaces_are_left_out(make: Make) -> None:
    ones, zeros = torch.ones(2), torch.zeros(2)
    x = torch.arange(8.0).view(4, 2)
    out = torch.ops.aten._batch_norm_with_update(x, ones, zeros, zeros.clone(), ones.clone(), 0.1, 1e-5)
    given = (x, ones, zeros, zeros, ones, 0.1, 1e-5)
    call = make("aten::_batch_norm_with_update", given, *out[:3], torch.tensor([1.0, 2.0]))
    assert list(errors(call)) == ["output.0", "output.1", "output.2"], "but not the reserve"


def test_undefined_results_are_left_out(make: Make) -> None:
    call = make("aten::add.Tensor", (X, Y), (X + Y) * 2, flags=r.UNDEFINED)
    run, failure = attempt(call, False, CPU)
    assert failure is None
    assert list(measured(call, run, None)) == []


def test_as_this_machine_does_it_is_no_fault(make: Make) -> None:
    """The inverse of a matrix that float32 cannot invert is far from that of float64, and made right all the same."""
    hilbert = 1 / (torch.arange(8.0).view(8, 1) + torch.arange(8.0) + 1)
    result, info = torch.ops.aten.linalg_inv_ex(hilbert)
    found = errors(make("aten::linalg_inv_ex", (hilbert,), result, info))["output.0"]
    assert found.bit_equal and found.ratio <= 1 and found.error > 0.01
    assert errors(make("aten::linalg_inv_ex", (hilbert,), result * 20, info))["output.0"].ratio > SUSPECT


# -- an attempt ----------------------------------------------------------------------------------------------------


def test_an_attempt_gives_a_run_or_says_why(make: Make) -> None:
    run, failure = attempt(make("aten::add.Tensor", (X, Y), X + Y), True, CPU)
    assert run is not None and failure is None and run.outputs.dtype == torch.float64
    run, failure = attempt(make("aten::add.Tensor", (X, Y), X + Y), False, CPU)
    assert run is not None and torch.equal(run.outputs, X + Y)
    run, failure = attempt(make("aten::mm", (X, Y), X), False, CPU)
    assert run is None and isinstance(failure, ReplayError)


def test_without_a_float64_run_the_native_one_is_the_reference(make: Make) -> None:
    call = make("aten::add.Tensor", (X, Y), X + Y)
    native, _ = attempt(call, False, CPU)
    (found,) = measured(call, native, None)
    assert found.error == 0.0 and found.bit_equal
    wide, _ = attempt(call, True, CPU)
    (found,) = measured(call, None, wide)
    assert not found.bit_equal


# -- random numbers ------------------------------------------------------------------------------------------------


def test_generators_in_other_states_draw_otherwise(record: Callable[..., Any]) -> None:
    def drawn(seed: int, p: float = 0.5) -> Call:
        def body() -> None:
            torch.manual_seed(seed)
            torch.bernoulli(X * 0 + p)

        found: Call = record(body)["Aten.bernoulli.0.forward"]
        return found

    assert draws_otherwise(drawn(0), drawn(1))
    assert not draws_otherwise(drawn(0), drawn(0))
    plain = record(lambda: X + Y)["Aten.add.0.forward"]
    assert not draws_otherwise(plain, plain), "it has no generator"
    assert not draws_otherwise(drawn(0), plain) and not draws_otherwise(plain, drawn(0))


def test_an_op_that_could_draw_and_does_not_draws_nothing_else(record: Callable[..., Any]) -> None:
    def attended(seed: int) -> Call:
        q = torch.ones(1, 1, 2, 4)

        def body() -> None:
            torch.manual_seed(seed)
            torch.rrelu(X, training=False)
            torch.native_dropout(X, 0.0, True)
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

        rank = record(body)
        return next(call for call in rank.calls if "attention" in call.op and call.kind == "aten")

    one, other = attended(0), attended(1)
    assert not draws_otherwise(one, other)


@pytest.mark.parametrize("seed", [37, 120, 203])
def test_digits_that_cancel_are_lost_by_any_formula(seed: int, make: Make) -> None:
    """The gradient of a softmax over two scores: what is left of each is far below what both have in common."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.zeros(1, 2, 4)
    probs[..., :1] = torch.rand(1, 2, 1, generator=generator)
    probs[..., 1:2] = 1 - probs[..., :1]
    grad = torch.randn(1, 2, 4, generator=generator) * 1e-3 + 1.0
    products = grad * probs
    made = products - probs * products.sum(-1, keepdim=True)
    honest = errors(make("aten::_softmax_backward_data", (grad, probs, -1, torch.float32), made))["output.0"]
    assert honest.ratio <= SUSPECT, honest
    wrong = errors(make("aten::_softmax_backward_data", (grad, probs, -1, torch.float32), made * 1.02))["output.0"]
    assert wrong.ratio > SUSPECT, wrong
