"""What changes in judging a pair where both sides ran in other layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.evidence.findings import Finding
from aten_dump.analysis.evidence.judgement import Judgement
from aten_dump.analysis.judging.result_judge import ResultJudge
from aten_dump.analysis.judging.sources import Sources
from aten_dump.analysis.layouts.layout_pair_walk import (
    LayoutJudge,
    LayoutKnowledge,
    RankExplainer,
    own_ratios,
    shares,
    sizes_of,
)
from aten_dump.analysis.layouts.rank_replays import RankReplays
from aten_dump.analysis.rerun.op_errors import Replays
from aten_dump.analysis.rerun.rounding_error import LocalError
from aten_dump.dump import Call, Value
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from aten_dump.dump.across_ranks.part_grids import Placement
from tests.analysis.by_hand import ROUNDOFF, apart, inputs, one_call
from tests.dump.across_ranks.ranks_of_a_step import ranks_of, wholes
from tests.dump.building import Builder, value

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
WHOLE = torch.arange(1.0, 25.0).view(4, 6)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Call]:
    count = iter(range(100))

    def call(*given: Any, result: torch.Tensor = X + Y, op: str = "aten::add.Tensor", **options: Any) -> Call:
        return one_call(tmp_path / str(next(count)), op, given or (X, Y), [result], **options)

    return call


def assembled(folder: Path, parts: list[torch.Tensor], dim: int | None, shape: tuple[int, ...]) -> AssembledValue:
    found = AssembledRank(wholes(ranks_of(folder, parts, None, ())), {}).value_by_id(1)
    assert isinstance(found, AssembledValue)
    found.assembly.across(Placement("replica") if dim is None else Placement("shard", dim), shape)
    return found


def whole(folder: Path, tensor: torch.Tensor) -> Value:
    b = Builder(folder)
    number = b.value(tensor)
    return open_dump(b.finish()).rank(0, 0).value_by_id(number)


# -- results that every rank has right -------------------------------------------------------------------------------


class RightOnEveryRank(Replays):
    """Replays of calls whose ranks did each what `honest` did."""

    def __init__(self, honest: Call) -> None:
        super().__init__()
        self._honest = honest

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        return super().errors(self._honest)


def judged(
    make: Callable[..., Call], distance: float, ranks: int = 2, made: torch.Tensor = X, **given: Any
) -> Judgement:
    """Judge what ranks made together, `made`, of X and Y, which they were to add."""
    honest, target = make(), make(result=made)
    judge = LayoutJudge((), RightOnEveryRank(honest), None)
    judge.ranks = ranks
    found = {"output.0": (target.outputs, honest.outputs, apart(distance, rmse=given.pop("rmse", 1.0)))}
    known = {"worst": "within", **given}
    return judge.results(target, honest, found, inputs(**known))["output.0"]


@pytest.mark.parametrize(("depth", "ranks"), [(0, 2), (3, 2), (0, 8)])
def test_right_on_every_rank_may_be_wrong_together(make: Callable[..., Call], depth: int, ranks: int) -> None:
    limit = 5.5 * ROUNDOFF * 4.0 * math.sqrt((1 + depth) * ranks)
    fine = judged(make, limit * 0.999, ranks, depth=depth)
    assert (fine.status, fine.guilty, fine.floor_from) == ("within", False, "replay")
    wrong = judged(make, limit * 1.001, ranks, depth=depth)
    assert (wrong.status, wrong.guilty, wrong.floor_from) == ("different", True, "depth")
    assert "is a reduction missing?" in wrong.note
    assert wrong.floor == pytest.approx(limit) and wrong.ratio == pytest.approx(1.001)


def test_what_the_op_makes_of_the_whole_is_right_however_far_it_is_from_the_counterpart(
    make: Callable[..., Call],
) -> None:
    said = judged(make, 0.9, made=X + Y)  # of inputs of which rounding is all there is, Adam makes steps as long as any
    assert (said.status, said.guilty, said.floor_from) == ("within", False, "replay")


def test_noise_of_the_inputs_is_allowed(make: Callable[..., Call]) -> None:
    assert judged(make, 8e-3, error=1e-3).status == "within"
    assert judged(make, 8.1e-3, error=1e-3).status == "different"
    assert judged(make, 0.9, noise=1e-3, rmse=8e-3 * 2.0).status == "within", "as large as noise that is summed"
    assert judged(make, 0.9, noise=1e-3, rmse=8e-3 * 2.1).status == "different"


def test_behind_inputs_that_differ_nobody_is_guilty(make: Callable[..., Call]) -> None:
    assert judged(make, 0.9, worst="different").guilty is False
    assert judged(make, 0.9, worst="different").status == "different"


def test_a_wrong_result_is_wrong_as_ever(make: Callable[..., Call]) -> None:
    call = make(result=(X + Y) * 1.01)
    found = {"output.0": (call.outputs, call.outputs, apart(0.0))}
    said = LayoutJudge((), Replays(), None).results(call, call, found, inputs("same"))["output.0"]
    assert (said.status, said.guilty, said.floor_from) == ("different", True, "replay")


def test_parts_that_make_up_no_counterpart_are_held_against_their_own_replay(make: Callable[..., Call]) -> None:
    nowhere = Closeness("none", reason="in no order do they come near it")
    for result, expected in ((X + Y, ("unknown", False, "")), ((X + Y) * 1.01, ("different", True, "replay"))):
        call = make(result=result)
        found = {"output.0": (call.outputs, call.outputs, nowhere)}
        for known in (inputs("within"), inputs("unknown")):
            said = LayoutJudge((), Replays(), None).results(call, call, found, known)["output.0"]
            assert (said.status, said.guilty, said.floor_from) == expected


# -- sizes of parts ------------------------------------------------------------------------------------------------


def test_arguments_that_are_sizes_of_parts(make: Callable[..., Call]) -> None:
    def view(*shape: int) -> Call:
        return make(X, list(shape), op="aten::view", arguments=("self", "size"))

    def differs(one: Call, other: Call, sizes: set[tuple[int, int]]) -> list[str]:
        judge = ResultJudge((), Replays(), None)
        knows = LayoutKnowledge((one.rank, other.rank), "aten", judge, Sources((0, 0), exact=True), read_data=True)
        knows.sizes = frozenset(sizes)
        return [str(d) for d in knows.differences(one, other)]

    assert differs(view(4, 2), view(8, 2), {(4, 8)}) == []
    assert differs(view(4, 2), view(8, 2), set()) == ["size is [4, 2], in the baseline [8, 2]"]
    assert differs(view(8, 2), view(4, 2), {(4, 8)}) != [], "the part is the target's"
    assert differs(view(4, 2), view(8, 3), {(4, 8)}) != []
    assert differs(view(4), view(8, 2), {(4, 8)}) != []
    halved = [make(X, factor, op="aten::mul.Scalar", arguments=("self", "other")) for factor in (0.5, 0.25)]
    assert differs(halved[0], halved[1], {(4, 8)}) != []
    number = [make(X, n, op="aten::add.Scalar", arguments=("self", "other")) for n in (4, 8)]
    assert differs(number[0], number[1], {(4, 8)}) == []


def test_sizes_of_what_was_put_together(tmp_path: Path) -> None:
    rank = AssembledRank(wholes(ranks_of(tmp_path, list(WHOLE.chunk(2)), None, ())), {})
    assert sizes_of(rank) == set(), "nothing is known yet"
    value = rank.value_by_id(1)
    assert isinstance(value, AssembledValue)
    value.assembly.across(Placement("shard", 0), (4, 6))
    assert sizes_of(rank) == {(2, 4), (6, 6), (12, 24)}


# -- which rank ----------------------------------------------------------------------------------------------------


def test_which_ranks_hold_what_differs(tmp_path: Path) -> None:
    parts = [part.clone() for part in WHOLE.chunk(2)]
    parts[1][0, :3] *= 1.5
    value = assembled(tmp_path / "parts", parts, 0, (4, 6))
    said = shares(value, whole(tmp_path / "whole", WHOLE))
    error = float((parts[1] - WHOLE[2:]).norm() / WHOLE[2:].norm())
    assert said == f"3 of 12 elements of rank 1 differ (relative L2 {error:.3g}), those of rank 0 agree"
    both = assembled(tmp_path / "both", [part * 2 for part in WHOLE.chunk(2)], 0, (4, 6))
    assert shares(both, whole(tmp_path / "other", WHOLE)) == ("24 of 24 elements of ranks 0, 1 differ (relative L2 1)")


def test_a_small_share_is_none(tmp_path: Path) -> None:
    parts = [part.clone() for part in WHOLE.chunk(2)]
    parts[0] *= 1.01
    parts[1] *= 1.5
    value = assembled(tmp_path / "parts", parts, 0, (4, 6))
    assert shares(value, whole(tmp_path / "whole", WHOLE)).endswith("those of rank 0 agree")


def test_replicas_that_are_not_equal(tmp_path: Path) -> None:
    value = assembled(tmp_path / "parts", [WHOLE, WHOLE * 2], None, (4, 6))
    value.assembly.variant = 1
    said = shares(value, whole(tmp_path / "whole", WHOLE))
    assert said == "the replicas are not equal: that of rank 1 is compared, being the farthest off"


def test_where_it_cannot_be_told_nothing_is_said(tmp_path: Path) -> None:
    value = assembled(tmp_path / "parts", list(WHOLE.chunk(2)), 0, (4, 6))
    assert shares(value, whole(tmp_path / "short", WHOLE[:3].clone())) == ""
    value.assembly.across(Placement("sum"), (2, 6))
    assert shares(value, whole(tmp_path / "part", WHOLE[:2].clone())) == "", "all have a share in each element"
    value.assembly.give_up("unknown", (4, 6))
    assert shares(value, whole(tmp_path / "whole", WHOLE)) == ""


# -- findings ------------------------------------------------------------------------------------------------------


def exp_on_ranks(folder: Path, *factors: float) -> AssembledRank:
    ranks = {}
    for rank, (part, factor) in enumerate(zip(WHOLE.chunk(len(factors)), factors, strict=True)):
        b = Builder(folder, 0, rank)
        given, made = b.value(part.clone()), b.value(part.log() * factor)
        b.call(b.op("aten", "aten::log", "Aten", "log", ("self",)), args=[value(given)], outputs=value(made))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    found = AssembledRank(wholes(ranks), {})
    for number in (1, 2):
        whole_value = found.value_by_id(number)
        assert isinstance(whole_value, AssembledValue)
        whole_value.assembly.across(Placement("shard", 0), (4, 6))
    return found


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ((1.0, 1.02), "rank 1 computed it wrong ("),
        ((1.02, 1.02), "ranks 0, 1 computed it wrong ("),
    ],
)
def test_findings_name_the_ranks(tmp_path: Path, factors: tuple[float, ...], said: str) -> None:
    target, baseline = exp_on_ranks(tmp_path / "target", *factors), exp_on_ranks(tmp_path / "baseline", 1.0)
    judge = LayoutJudge((), RankReplays(), None)
    knows = LayoutKnowledge((target, baseline), "aten", judge, Sources((0, 0), exact=True), read_data=True)
    pair = Pair(target.calls[0], baseline.calls[0], "module")
    judge.replays.local_errors(pair.target, pair.baseline)
    row = knows.evidence.judged(pair, "output.0", apart(0.02), Judgement("different", True, floor_from="replay"))
    knows.evidence.blame("op", row, "it is wrong", "", (1, 1))
    RankExplainer(knows).explain([pair])
    (finding,) = knows.evidence.findings
    assert finding.text.startswith(f"it is wrong; {said}")
    assert finding.text.endswith("times what rounding explains)" if factors[0] != 1 else "rank 0 right")


def test_other_findings_are_traced_to_elements(tmp_path: Path) -> None:
    target, baseline = exp_on_ranks(tmp_path / "target", 1.0, 1.02), exp_on_ranks(tmp_path / "baseline", 1.0)
    judge = LayoutJudge((), RankReplays(), None)
    knows = LayoutKnowledge((target, baseline), "aten", judge, Sources((0, 0), exact=True), read_data=True)
    pair = Pair(target.calls[0], baseline.calls[0], "module")
    row = knows.evidence.judged(pair, "output.0", apart(0.02), Judgement("different", True, floor_from="depth"))
    for number in range(4):
        knows.evidence.blame("op", replace(row), f"finding {number}", "", (4 - number, 1))
    RankExplainer(knows).explain([pair])
    texts = [finding.text for finding in knows.evidence.findings]
    assert [text.partition(";")[0] for text in texts] == [f"finding {n}" for n in (3, 2, 1, 0)], "in order"
    assert all("12 of 12 elements of rank 1 differ" in text for text in texts[:3])
    assert texts[3] == "finding 0", "only the first few"


def test_what_belongs_to_no_pair_stays_as_it_is(tmp_path: Path) -> None:
    target = exp_on_ranks(tmp_path / "target", 1.0, 1.02)
    judge = LayoutJudge((), RankReplays(), None)
    knows = LayoutKnowledge((target, target), "aten", judge, Sources((0, 0), exact=True), read_data=True)
    pair = Pair(target.calls[0], target.calls[0], "module")
    row = knows.evidence.judged(pair, "output.0", apart(0.02), Judgement("different", True))
    knows.evidence.findings += [
        Finding("op", replace(row, target=None), "a", "", (1, 1)),
        Finding("op", row, "b", "", (2, 1)),
    ]
    RankExplainer(knows).explain([])
    assert [finding.text for finding in knows.evidence.findings] == ["a", "b"]


def test_ratios_are_known_of_what_was_replayed_on_ranks(tmp_path: Path) -> None:
    target = exp_on_ranks(tmp_path / "target", 1.0, 1.02)
    replays = RankReplays()
    assert own_ratios(replays, target.calls[0]) == {}
    replays.errors(target.calls[0])
    assert own_ratios(replays, target.calls[0])[1] > 1 >= own_ratios(replays, target.calls[0])[0]
    assert own_ratios(Replays(), target.calls[0]) == {}
