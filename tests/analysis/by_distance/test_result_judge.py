"""Is a result right, given what went in: rules, bits, random numbers, each side's own error, an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from aten_dump.analysis.by_distance.result_judge import OTHER_DRAWS, ResultJudge, _no_error, carried, is_random
from aten_dump.analysis.distance.metrics import Metrics
from aten_dump.analysis.distance.value_distance import Closeness, closeness
from aten_dump.analysis.evidence.judgement import Inputs, Judgement
from aten_dump.analysis.evidence.user_rules import Rule
from aten_dump.analysis.rerun.op_errors import Replays
from aten_dump.dump import Call
from tests.analysis.by_hand import EQUAL, ROUNDOFF, apart, inputs

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
ADD = "aten::add.Tensor"


def judge(*rules: Rule, replay: bool = True) -> ResultJudge:
    return ResultJudge(rules, Replays(enabled=replay), None)


def results(target: Call, baseline: Call, given: Inputs, by: ResultJudge | None = None) -> dict[str, Judgement]:
    theirs = dict(baseline.result_values())
    found = {slot: (value, theirs[slot], closeness(value, theirs[slot])) for slot, value in target.result_values()}
    return (by or judge()).results(target, baseline, found, given)


def brief(said: Judgement) -> tuple[str, bool, str]:
    return said.status, said.guilty, said.floor_from


# -- rules ---------------------------------------------------------------------------------------------------------


def test_a_rule_is_above_everything(make: Callable[..., Call]) -> None:
    call = make(ADD, (X, Y), X + Y)
    by = judge(Rule("add.0.*output", "rel_l2 <= 0.5"))
    passed = by.rule(call, "output.0", apart(0.5))
    assert passed is not None and brief(passed) == ("within", False, "rule")
    assert passed.note == "let through by rule add.0.*output: rel_l2 <= 0.5"
    failed = by.rule(call, "output.0", apart(0.6))
    assert failed is not None and brief(failed) == ("different", True, "rule")
    assert failed.note == "rule add.0.*output: rel_l2 <= 0.5 is not met"
    assert by.rule(call, "mutated.self", apart(0.6)) is None
    assert judge().rule(call, "output.0", apart(0.6)) is None


def test_a_rule_may_name_the_op(make: Callable[..., Call]) -> None:
    assert judge(Rule("^aten::add", "ignore")).rule(make(ADD, (X, Y), X + Y), "output.0", apart(9.0)) is not None


def test_equal_bits_need_no_numbers(make: Callable[..., Call]) -> None:
    call = make(ADD, (X, Y), X + Y)
    equal = Closeness("hash", bitwise=True)
    for predicate in ("bitwise", "exact == 1 and cosine == 1", "max_abs <= 0 and nonfinite == 0 and rmse == 0"):
        said = judge(Rule("add", predicate)).rule(call, "output.0", equal)
        assert said is not None and said.status == "same", predicate
    for predicate in ("exact < 1", "rel_l2 > 0", "max_rel > 0 or max_scaled > 0", "target_nonfinite > 0"):
        said = judge(Rule("add", predicate)).rule(call, "output.0", equal)
        assert said is not None and said.status == "different", predicate
    given = replace(EQUAL, count=7)
    seen: list[Metrics] = []
    judge(Rule("add", lambda m: bool(seen.append(m)))).rule(call, "output.0", Closeness("tensor", True, metrics=given))
    assert seen == [given], "numbers that were computed are those that count"


def test_where_only_hashes_differ_a_rule_about_numbers_is_not_met(make: Callable[..., Call]) -> None:
    said = judge(Rule("add", "rel_l2 < 9")).rule(make(ADD, (X, Y), X + Y), "output.0", Closeness("hash"))
    assert said is not None and said.status == "different"


def test_rules_decide_each_result_by_itself(make: Callable[..., Call]) -> None:
    target = make("aten::sort", (X,), X + 1.0, torch.arange(4))
    baseline = make("aten::sort", (X,), X, torch.arange(4))
    said = results(target, baseline, inputs("same"), judge(Rule(r"output\.0", "ignore")))
    assert list(said) == ["output.0", "output.1"]
    assert brief(said["output.0"]) == ("within", False, "rule")
    assert brief(said["output.1"]) == ("same", False, "exact")


# -- what needs no floor -------------------------------------------------------------------------------------------


def test_equal_bits_are_the_same(make: Callable[..., Call]) -> None:
    call = make(ADD, (X, Y), X + Y)
    assert brief(results(call, call, inputs("different"))["output.0"]) == ("same", False, "exact")


@pytest.mark.parametrize(
    ("given", "guilty"),
    [
        (inputs("same"), True),
        (inputs("within"), True),
        (inputs("different"), False),
        (inputs("same", same_shapes=False), False),
    ],
)
def test_another_shape_is_different(make: Callable[..., Call], given: Inputs, guilty: bool) -> None:
    said = results(make(ADD, (X, Y), X + Y), make(ADD, (X, Y), (X + Y)[:2]), given)["output.0"]
    assert brief(said) == ("different", guilty, "exact")


def test_what_reads_undefined_memory_is_unknown_even_if_it_is_equal(make: Callable[..., Call]) -> None:
    call = make(ADD, (X, Y), X + Y)
    said = results(call, call, inputs("unknown", undefined=True))["output.0"]
    assert (said.status, said.note) == ("unknown", "it reads memory that nothing had written")


def test_without_data_nothing_is_known(make: Callable[..., Call]) -> None:
    call, none = make(ADD, (X, Y), X + Y), make(ADD, (X, Y), X + Y, store=None)
    said = results(none, call, inputs("same"))["output.0"]
    assert (said.status, said.guilty) == ("unknown", False)
    assert said.note == "no data of the target's tensor was recorded"


@pytest.mark.parametrize(("worst", "guilty"), [("same", True), ("within", False), ("different", False)])
def test_other_hashes_are_a_fault_only_of_equal_inputs(make: Callable[..., Call], worst: Any, guilty: bool) -> None:
    call = make(ADD, (X, Y), X + Y)
    found = {"output.0": (call.outputs, call.outputs, Closeness("hash"))}
    said = judge().results(call, call, found, inputs(worst))["output.0"]
    assert brief(said) == ("different", guilty, "exact")
    assert said.note == "hashes show equal bits alone"


def test_a_workspace_is_nobodys_business(make: Callable[..., Call]) -> None:
    op, reserved = "aten::_batch_norm_with_update", [torch.zeros(4), torch.ones(4)]
    calls = [make(op, (X,), X, X, X, one) for one in reserved]
    said = results(calls[0], calls[1], inputs("unknown", undefined=True))
    assert brief(said["output.3"]) == ("same", False, "exact")
    assert said["output.0"].status == "unknown", "the others are results"


# -- random numbers ------------------------------------------------------------------------------------------------


def test_ops_that_draw(make: Callable[..., Call]) -> None:
    drawing = ("aten::bernoulli.p", "aten::randn", "aten::native_dropout", "aten::normal_")
    assert all(is_random(make(op, (X,), X)) for op in drawing)
    others = (ADD, "aten::relu", "aten::no_such_op", "nolib::randn", "aten::randn.no_such_overload")
    assert not any(is_random(make(op, (X,), X)) for op in others)
    assert not is_random(make("torch.randn", (X,), X, kind="api")), "the op inside it draws"


@pytest.mark.parametrize(("worst", "guilty"), [("same", True), ("within", True), ("different", False)])
def test_other_numbers_are_a_difference(make: Callable[..., Call], worst: Any, guilty: bool) -> None:
    one, other = make("aten::randn", ([4],), X), make("aten::randn", ([4],), Y)
    said = results(one, other, inputs(worst))["output.0"]
    assert (brief(said), said.note) == (("different", guilty, "exact"), OTHER_DRAWS)


def test_the_mask_of_dropout_is_drawn_and_its_result_is_not(make: Callable[..., Call]) -> None:
    mask = torch.tensor([True, False, True, True])

    def dropout(x: torch.Tensor, kept: torch.Tensor) -> Call:
        return make("aten::native_dropout", (x, 0.5, True), x * kept * 2, kept)

    noise = inputs("within", error=1e-7)
    said = results(dropout(X * (1 + 1e-6), mask), dropout(X, mask), noise)
    assert said["output.0"].note != OTHER_DRAWS, "noise in what went in is no other draw"
    said = results(dropout(X, ~mask), dropout(X, mask), noise)
    assert [item.note for item in said.values()] == [OTHER_DRAWS, OTHER_DRAWS]


def test_equal_statistics_are_no_other_draw(make: Callable[..., Call]) -> None:
    call = make("aten::randn", ([4],), X)
    for error, note in ((0.0, False), (0.1, True)):
        found = {"output.0": (call.outputs, call.outputs, Closeness("statistic", error=error))}
        said = judge().results(call, call, found, inputs("same"))["output.0"]
        assert (said.note == OTHER_DRAWS) == note


def test_rounding_is_no_other_draw(make: Callable[..., Call]) -> None:
    """Another processor gives normal numbers another last bit."""
    for factor, note in ((1 + 2**-23, False), (1 + 1e-5, True)):
        one, other = make("aten::randn", ([4],), X * factor), make("aten::randn", ([4],), X)
        assert (results(one, other, inputs("same"))["output.0"].note == OTHER_DRAWS) == note
    one, other = (make("aten::randint", (9, [2]), torch.tensor([last, 3])) for last in (7, 8))
    assert results(one, other, inputs("same"))["output.0"].note == OTHER_DRAWS, "integers have no rounding"


def test_an_op_that_draws_nothing_random_has_no_other_draws(make: Callable[..., Call]) -> None:
    said = results(make(ADD, (X, Y), X - Y), make(ADD, (X, Y), X + Y), inputs("same"))["output.0"]
    assert said.note != OTHER_DRAWS


def test_only_the_state_tells_what_was_drawn_into_other_numbers(record: Callable[..., Any]) -> None:
    """torch.normal(mean): the result holds what went in too, so the generators are asked."""
    mean = torch.arange(8.0)

    def drawn(seed: int, shift: float = 0.0) -> Call:
        def body() -> None:
            torch.manual_seed(seed)
            torch.normal(mean + shift, 1.0)

        found: Call = record(body)["Aten.normal.0.forward"]
        return found

    said = results(drawn(0), drawn(1), inputs("same"))["output.0"]
    assert said.note == OTHER_DRAWS
    said = results(drawn(0, 1e-6), drawn(0), inputs("within", error=1e-6))["output.0"]
    assert said.note != OTHER_DRAWS


# -- each side's own error -----------------------------------------------------------------------------------------


def test_a_right_result_is_proven_by_a_replay(make: Callable[..., Call]) -> None:
    right = X + Y
    near = right * (1 + 2 * ROUNDOFF)
    assert not torch.equal(near, right)
    said = results(make(ADD, (X, Y), near), make(ADD, (X, Y), right), inputs("same"))["output.0"]
    assert brief(said) == ("within", False, "replay")
    assert said.proven and said.own is not None and said.ratio is not None and said.ratio <= 1


@pytest.mark.parametrize(
    ("wrong", "note"), [("target", ""), ("baseline", "it is the baseline that is off"), ("both", "")]
)
def test_the_side_that_is_off_is_named(make: Callable[..., Call], wrong: str, note: str) -> None:
    target = (X + Y) * (1.02 if wrong != "baseline" else 1.0)
    baseline = (X + Y) * ({"target": 1.0, "baseline": 1.02, "both": 0.9}[wrong])
    said = results(make(ADD, (X, Y), target), make(ADD, (X, Y), baseline), inputs("different"))["output.0"]
    assert (brief(said), said.note) == (("different", True, "replay"), note), "whatever went in"
    assert said.own is not None
    assert said.ratio == max(said.own.ratio, said.own.baseline_ratio) > 1
    assert said.floor == said.own.floor


def test_two_right_results_of_other_inputs_are_as_unlike_as_these(make: Callable[..., Call]) -> None:
    calls = make(ADD, (X * 2, Y), X * 2 + Y), make(ADD, (X, Y), X + Y)
    assert brief(results(*calls, inputs("different"))["output.0"]) == ("different", False, "replay")
    assert results(*calls, inputs("unknown"))["output.0"].status == "unknown"
    assert results(*calls, inputs("within"))["output.0"].status == "within"


def test_why_there_is_no_replay_is_said(make: Callable[..., Call]) -> None:
    calls = make(ADD, (X, Y), (X + Y) * 1.5), make(ADD, (X, Y), X + Y)
    said = results(*calls, inputs("same"), judge(replay=False))["output.0"]
    assert (brief(said), said.note) == (("different", True, "dtype"), "no replay: replay is switched off")
    found = {"output.0": (calls[0].outputs, calls[1].outputs, Closeness("statistic", error=0.5))}
    said = judge().results(*calls, found, inputs("same"))["output.0"]
    assert (brief(said), said.note) == (("different", True, "dtype"), "no replay: no bytes were recorded")


def test_the_note_of_an_estimate_stays(make: Callable[..., Call]) -> None:
    calls = make("aten::no_such_div", (X, Y), (X + Y) * 1.5), make("aten::no_such_div", (X, Y), X + Y)
    assert "only a replay can decide" in results(*calls, inputs("within"))["output.0"].note


def test_statistics_are_estimated_even_beside_results_that_were_replayed(make: Callable[..., Call]) -> None:
    calls = make("aten::frexp.Tensor", (X,), X, X.int()), make("aten::frexp.Tensor", (X,), X, X.int())
    values = [dict(call.result_values()) for call in calls]
    found = {
        "output.0": (values[0]["output.0"], values[1]["output.0"], apart(0.5)),
        "output.1": (values[0]["output.1"], values[1]["output.1"], Closeness("statistic", error=0.5)),
    }
    said = judge().results(*calls, found, inputs("same"))
    assert said["output.0"].floor_from == "replay"
    assert said["output.1"].floor_from == "exact"


# -- what a right result carries on --------------------------------------------------------------------------------


def test_a_difference_of_the_inputs_that_does_not_show_is_gone(make: Callable[..., Call]) -> None:
    value = make(ADD, (X, Y), X + Y).outputs
    for depth in (0, 3):
        limit = 2.0 * 5.5 * ROUNDOFF * math.sqrt(1 + depth)
        for worst in ("different", "unknown"):
            given = inputs(worst, depth=depth)  # type: ignore[arg-type]
            assert carried((value, value, apart(limit)), given) == "within"
            assert carried((value, value, apart(limit * 1.01)), given) == worst
            assert carried((value, value, apart(0.0, nonfinite=1)), given) == worst
            assert carried((value, value, Closeness("tensor")), given) == "within"
    assert carried((value, value, apart(9.0)), inputs("within")) == "within", "right for inputs that agree"


def test_equal_results_have_the_metrics_of_equal_tensors() -> None:
    """They are not computed for these."""
    assert replace(_no_error(Closeness("tensor", True, 0.0)), count=4, dtype="float32") == EQUAL
    assert _no_error(apart(0.5)) == apart(0.5).metrics
