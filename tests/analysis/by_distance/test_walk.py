"""Pair by pair: the same inputs, the same arguments, right results; and what is said of the first that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from aten_dump.analysis.by_distance.walk import Walk
from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.evidence.findings import Row
from aten_dump.analysis.evidence.user_rules import Rule
from aten_dump.analysis.tasks import Settings
from tests.analysis.by_hand import walked
from tests.analysis.wrong_ops import Wrong

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
A = torch.ops.aten
Body = Callable[[], object]


@pytest.fixture
def walk(record: Callable[..., Any]) -> Callable[..., Walk]:
    """walk(target, baseline, wrong=...): the walk over two recorded programs; `wrong` stands below the target."""

    def run(
        target: Body, baseline: Body | None = None, settings: Settings | None = None, wrong: Any = None, **options: Any
    ) -> Walk:
        if wrong is None:
            one = record(target, **options)
        else:
            with wrong:
                one = record(target, **options)
        return walked(one, record(baseline or target, **options), settings)

    return run


Walks = Callable[..., Walk]


def found(walk: Walk) -> list[tuple[str, str, str]]:
    return [(f.kind, f.row.place.call, f.row.slot) for f in walk.evidence.findings]


def text(walk: Walk) -> str:
    (finding,) = walk.evidence.findings
    return finding.text


def rows(walk: Walk, call: str) -> dict[str, Row]:
    return {row.slot: row for row in walk.evidence.rows if row.place.call == call}


def names(walk: Walk, ids: Iterable[int]) -> list[str]:
    return [walk.ranks[0].call(number).name for number in sorted(ids)]


def chain() -> None:
    X.mul(2).view(2, 2).add(1).relu()


# -- one pair ------------------------------------------------------------------------------------------------------


def test_equal_runs_are_the_same_and_proven(walk: Walks) -> None:
    seen = walk(chain)
    assert found(seen) == []
    assert {row.status for row in seen.evidence.rows} == {"same"}
    assert names(seen, seen.judged - seen.unproven.keys()) == [
        f"Aten.{name}.0.forward" for name in ("mul", "add", "relu")
    ]
    assert set(seen.unproven) == set()


def test_the_depth_is_how_many_ops_a_value_went_through(walk: Walks) -> None:
    seen = walk(lambda: X.mul(2).add(1).relu())
    state = seen.state(seen.ranks[0]["Aten.relu.0.forward"].outputs, seen.ranks[1]["Aten.relu.0.forward"].outputs)
    assert state is not None and (state.status, state.depth) == ("same", 3)


def test_a_wrong_result_is_the_only_finding(walk: Walks) -> None:
    seen = walk(chain, wrong=Wrong(A.add.Tensor, 0, result=lambda r: r * 1.01))
    assert found(seen) == [("op", "Aten.add.0.forward", "output.0")]
    (finding,) = seen.evidence.findings
    assert finding.text == "its result is wrong for its inputs"
    assert finding.inputs == "its inputs are bitwise equal"
    assert finding.order == (seen.ranks[0]["Aten.add.0.forward"].id, 1)
    after = rows(seen, "Aten.relu.0.forward")
    assert (after["input.0"].status, after["output.0"].status) == ("different", "different")
    assert after["output.0"].ratio is not None and after["output.0"].ratio <= 1, "right for what it was given"
    assert names(seen, seen.judged - seen.unproven.keys()) == [
        f"Aten.{name}.0.forward" for name in ("mul", "add", "relu")
    ]


def test_a_result_that_could_not_be_replayed_is_estimated(walk: Walks) -> None:
    wrong = Wrong(A.add.Tensor, 0, result=lambda r: r * 1.01)
    seen = walk(chain, settings=Settings(replay=False), wrong=wrong)
    assert found(seen) == [("op", "Aten.add.0.forward", "output.0")]
    assert text(seen) == "its result does not agree (no replay: replay is switched off)"
    assert names(seen, set(seen.unproven)) == ["Aten.add.0.forward", "Aten.relu.0.forward"]


def test_other_arguments_count_where_the_result_is_another(walk: Walks) -> None:
    seen = walk(lambda: X.clamp(0, 2.5), lambda: X.clamp(0, 3.5))
    assert found(seen) == [("argument", "Aten.clamp.0.forward", "output.0")]
    assert text(seen) == "it was called with other arguments: max is 2.5, in the baseline 3.5"
    assert found(walk(lambda: X.clamp(0, 7), lambda: X.clamp(0, 8))) == [], "both leave the numbers as they are"


def test_another_shape_of_a_result(walk: Walks) -> None:
    seen = walk(lambda: X.relu(), wrong=Wrong(A.relu.default, 0, result=lambda r: r[:2].clone()))
    assert found(seen) == [("shape", "Aten.relu.0.forward", "output.0")]
    assert text(seen) == "its result has shape [2], in the baseline [4]"


def test_nan_that_the_baseline_does_not_have(walk: Walks) -> None:
    seen = walk(
        lambda: X.relu(),
        wrong=Wrong(A.relu.default, 0, result=lambda r: r.index_fill(0, torch.tensor(1), float("nan"))),
    )
    assert found(seen) == [("nonfinite", "Aten.relu.0.forward", "output.0")]
    assert text(seen) == "NaN or Inf stand at other places of its result"


def test_a_view_of_what_is_written_later_is_no_reader_of_it(walk: Walks) -> None:
    def ahead(function: Callable[..., torch.Tensor]) -> Body:
        def run() -> None:
            memory = torch.empty(4)
            seen = memory.view(2, 2)
            function(X, out=memory)
            seen.neg()

        return run

    assert found(walk(lambda: X.exp().view(2, 2).neg(), ahead(torch.exp))) == []
    (kind, call, slot), *more = found(walk(lambda: X.exp().view(2, 2).neg(), ahead(torch.sin)))
    assert (kind, call, slot, more) == ("region", "Aten.exp.0.forward", "output", [])


def test_another_dtype_is_wrong_though_the_numbers_are_equal(walk: Walks) -> None:
    seen = walk(lambda: X.relu(), wrong=Wrong(A.relu.default, 0, result=lambda r: r.double()))
    assert found(seen) == [("dtype", "Aten.relu.0.forward", "output.0")]
    assert text(seen) == "its result is float64, in the baseline float32"
    half = X.bfloat16()
    assert found(walk(lambda: half.relu(), lambda: X.relu())) == [], "the other precision came from outside"


def test_several_results_of_one_call_are_one_finding(walk: Walks) -> None:
    seen = walk(lambda: X.view(2, 2).max(1), wrong=Wrong(A.max.dim, 0, result=lambda r: (r[0] * 2, 1 - r[1])))
    assert found(seen) == [("op", "Aten.max.0.forward", "output.0")]
    assert rows(seen, "Aten.max.0.forward")["output.1"].status == "different"


# -- inputs --------------------------------------------------------------------------------------------------------


def test_other_data_are_a_source_and_the_op_is_right(walk: Walks) -> None:
    other = X * 1.5
    seen = walk(lambda: other.relu(), lambda: X.relu())
    assert found(seen) == [("source", "Aten.relu.0.forward", "input.0")]
    assert seen.evidence.findings[0].order == (seen.ranks[0]["Aten.relu.0.forward"].id, 0)
    twice = walk(lambda: (other.relu(), other.neg()), lambda: (X.relu(), X.neg()))
    assert found(twice) == [("source", "Aten.relu.0.forward", "input.0")], "a source is found once"


def test_the_result_of_another_call_is_rewired(walk: Walks) -> None:
    def body(which: int) -> Body:
        return lambda: (X.exp(), X.sin())[which].add(1)

    seen = walk(body(0), body(1))
    assert found(seen) == [("rewired", "Aten.add.0.forward", "input.0")]
    assert text(seen).startswith("it reads what Aten.exp.0.forward made, in the baseline what Aten.sin.0.forward made")


def test_a_call_that_the_other_side_lacks_makes_a_region(walk: Walks) -> None:
    seen = walk(lambda: X.exp().mul(1.5).sin().add(Y), lambda: X.exp().sin().add(Y))
    (finding,) = seen.evidence.findings
    assert (finding.kind, finding.row.place.call) == ("region", "Aten.mul.0.forward")
    assert finding.calls == ("Aten.mul.0.forward",)
    assert "in the baseline by no call without a counterpart" in finding.text
    assert finding.text.endswith("seen at input.0 of Aten.sin.0.forward")
    assert seen.led_to[0, seen.ranks[0]["Aten.mul.0.forward"].id] == "different"


def test_a_wrong_call_in_a_region_that_means_the_same_is_named(walk: Walks) -> None:
    wrong = Wrong(A.mul.Tensor, 0, result=lambda r: r * 1.01)
    seen = walk(lambda: X.mul(2.0).sin(), lambda: X.add(X).sin(), wrong=wrong)
    (finding,) = seen.evidence.findings
    assert (finding.kind, finding.row.place.call) == ("region", "Aten.mul.0.forward")
    assert "is off by more than rounding" in finding.text


def test_the_wrong_call_is_named_and_not_the_one_that_is_odd(walk: Walks) -> None:
    wrong = Wrong(A.mul.Tensor, 0, result=lambda r: r * 1.01)
    seen = walk(lambda: X.mul(2.0).mul(1.5).sin(), lambda: X.add(X).add(X).sin(), wrong=wrong)
    (finding,) = seen.evidence.findings
    assert finding.row.place.call == "Aten.mul.0.forward"


def test_the_same_by_other_ops_is_no_finding(walk: Walks) -> None:
    seen = walk(lambda: (X / 3).mul(Y.exp()).sin(), lambda: Y.exp().mul(X / 3).sin())
    assert found(seen) == []
    seen = walk(lambda: (X * 0.3).sin(), lambda: (X / (1 / 0.3)).sin())
    assert found(seen) == []
    assert "Aten.sin.0.forward" in names(seen, seen.judged - seen.unproven.keys())


def test_an_input_that_makes_no_difference_is_left_open(walk: Walks) -> None:
    seen = walk(lambda: X.sqrt().sign(), lambda: X.exp().sign())
    assert found(seen) == []
    row = rows(seen, "Aten.sign.0.forward")["input.0"]
    assert (row.status, row.note) == ("unknown", "its result is bitwise equal")


def test_amplification_is_the_error_over_that_of_the_inputs(walk: Walks) -> None:
    seen = walk(lambda: X.mul(2).mul(Y), wrong=Wrong(A.mul.Tensor, 0, result=lambda r: r * 1.01))
    row = rows(seen, "Aten.mul.1.forward")["output.0"]
    assert row.amplification == pytest.approx(1.0, rel=1e-4)
    assert rows(seen, "Aten.mul.0.forward")["output.0"].amplification is None


# -- views ---------------------------------------------------------------------------------------------------------


def test_views_hand_on_what_is_known(walk: Walks) -> None:
    wrong = Wrong(A.mul.Tensor, 0, result=lambda r: r * 1.01)
    seen = walk(lambda: X.mul(2).view(2, 2).t().exp(), wrong=wrong)
    assert found(seen) == [("op", "Aten.mul.0.forward", "output.0")]
    for name in ("view", "t"):
        both = rows(seen, f"Aten.{name}.0.forward")
        assert [both[slot].status for slot in ("input.0", "output.0")] == ["different", "different"]
    assert rows(seen, "Aten.exp.0.forward")["input.0"].status == "different"


def test_a_view_of_other_elements_is_found_where_it_is_read(walk: Walks) -> None:
    seen = walk(lambda: X.mul(2).view(2, 2).t().exp(), lambda: X.mul(2).view(2, 2).exp())
    (finding,) = seen.evidence.findings
    assert finding.row.place.call in ("Aten.t.0.forward", "Aten.exp.0.forward")
    seen = walk(lambda: X.exp()[:2].sin(), lambda: X.exp()[2:].sin())
    assert len(seen.evidence.findings) == 1
    seen = walk(lambda: X.exp().chunk(2)[0].sin(), lambda: X.exp().chunk(2)[1].sin())
    assert len(seen.evidence.findings) == 1


# -- pairs by data flow --------------------------------------------------------------------------------------------


def test_calls_that_came_in_another_order_are_paired_by_what_they_read(walk: Walks) -> None:
    def body(first: str) -> Body:
        def run() -> None:
            made = {"exp": X.exp(), "sin": X.sin()}
            for name in (first, "sin" if first == "exp" else "exp"):
                made[name] = made[name].mul(3.5)
            made["exp"].sub(made["sin"])

        return run

    seen = walk(body("exp"), body("sin"))
    assert found(seen) == []
    assert by_flow(seen)["Aten.mul.0.forward"] == "Aten.mul.1.forward"
    assert names(seen, set(seen.unproven)) == []
    assert rows(seen, "Aten.mul.0.forward")["output.0"].status == "same"


def by_flow(walk: Walk) -> dict[str, str]:
    rows = (row for row in walk.evidence.rows if row.how == "flow")
    return {row.target.call: row.baseline.call for row in rows if row.target and row.baseline}


def test_an_input_from_outside_does_not_hide_what_the_next_one_tells(walk: Walks) -> None:
    def body(first: str, second: str) -> Body:
        def run() -> None:
            made = {"exp": X.exp(), "sin": X.sin()}
            read = {name: Y.mul(made[name]) for name in (first, second)}
            read["exp"].sub(read["sin"])

        return run

    seen = walk(body("exp", "sin"), body("sin", "exp"))
    assert found(seen) == []
    assert by_flow(seen)["Aten.mul.0.forward"] == "Aten.mul.1.forward"


def test_among_those_that_read_the_same_it_is_the_one_of_the_same_op(walk: Walks) -> None:
    def body(first: str, second: str, *, more: bool) -> Body:
        def run() -> None:
            if more:  # calls that the target lacks
                X.cos(), X.tan()
            made = {"exp": X.exp(), "sin": X.sin()}
            if more:
                made["exp"].abs(), made["sin"].abs()
            read = {name: made[name].neg() for name in (first, second)}
            read["exp"].sub(read["sin"])

        return run

    seen = walk(body("exp", "sin", more=False), body("sin", "exp", more=True))
    assert found(seen) == []
    assert by_flow(seen)["Aten.neg.0.forward"] == "Aten.neg.1.forward"


def test_all_inputs_must_be_the_same(walk: Walks) -> None:
    def body(first: str, second: str) -> Body:
        def run() -> None:
            made = {"exp": X.exp(), "sin": X.sin()}
            common = X.sqrt()
            read = {name: common.sub(made[name]) for name in (first, second)}
            read["exp"].div(read["sin"])

        return run

    seen = walk(body("exp", "sin"), body("sin", "exp"))
    assert found(seen) == []
    assert by_flow(seen)["Aten.sub.0.forward"] == "Aten.sub.1.forward"


def test_a_rule_for_a_result_goes_before_other_arguments(walk: Walks) -> None:
    settings = Settings(rules=(Rule(r"clamp\.0\.forward\.output", "ignore"),))
    assert found(walk(lambda: X.clamp(0, 2.5), lambda: X.clamp(0, 3.5), settings)) == []


def test_a_call_with_other_arguments_is_not_paired_by_flow(walk: Walks) -> None:
    def body(numbers: tuple[float, float]) -> Body:
        return lambda: (X.exp().mul(numbers[0]), X.sin().mul(numbers[1]))

    seen = walk(body((2.0, 3.0)), body((2.5, 3.0)))
    assert [kind for kind, _, _ in found(seen)] == ["argument"]
    assert by_flow(seen) == {}


# -- calls of other kinds ------------------------------------------------------------------------------------------


def described(walk: Walk, name: str, other: str | None = None) -> dict[str, str]:
    before = len(walk.evidence.rows)
    walk.describe(Pair(walk.ranks[0][name], walk.ranks[1][other or name], "order"))
    return {row.slot: row.status for row in walk.evidence.rows[before:]}


def test_calls_around_the_ops_get_rows_from_what_was_found(walk: Walks) -> None:
    wrong = Wrong(A.mul.Tensor, 0, result=lambda r: r * 1.01)
    seen = walk(lambda: torch.sub(torch.mul(X, 2), Y), wrong=wrong)
    assert described(seen, "Torch.mul.0.forward") == {"input.0": "same", "output.0": "different"}
    assert described(seen, "Torch.sub.0.forward") == {
        "input.0": "different",
        "input.1": "same",
        "output.0": "different",
    }


def test_a_call_whose_partner_comes_later_waits_for_it(walk: Walks) -> None:
    """The target alone runs a function on what it ran it on before, and throws that away."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum()

    def body(*also: torch.Tensor) -> Body:
        return lambda: list(map(run, (X, *also, Y)))

    seen = walk(body(X), body())
    assert found(seen) == []
    pairs = by_flow(seen)
    assert {pairs[f"Aten.{op}.2.forward"] for op in ("exp", "sum")} == {"Aten.exp.1.forward", "Aten.sum.1.forward"}
    assert found(walk(body(), body(X))) == []
    assert found(walk(body(X * 3), body(Y * 3))), "given what no call of the other side is"


def test_results_that_nobody_reads_are_paired_by_what_they_are(walk: Walks) -> None:
    a, b = torch.outer(X, Y), torch.outer(Y, X)

    def fused() -> object:
        return torch.stack([a @ X, a @ Y]), torch.stack([b @ X, b @ Y])

    def in_parts() -> object:
        second = torch.stack([(b * X).sum(1), (b * Y).sum(1)])
        return torch.stack([(a * X).sum(1), (a * Y).sum(1)]), second

    def wrong() -> object:
        second = torch.stack([(b * X).sum(1), (b * X).sum(1)])
        return torch.stack([(a * X).sum(1), (a * Y).sum(1)]), second

    assert found(walk(fused, in_parts)) == []
    assert found(walk(in_parts, fused)) == []
    assert found(walk(wrong, fused))
