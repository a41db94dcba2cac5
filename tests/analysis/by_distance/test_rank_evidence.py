"""One step and rank: which calls are paired and walked, what counts for whom, and what comes back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aten_dump import open_dump
from aten_dump.analysis.by_distance.rank_evidence import compare_by_distance, divide, recompute_pairs
from aten_dump.analysis.evidence.findings import RankEvidence
from aten_dump.analysis.evidence.row_summary import NOT_COMPARED
from aten_dump.analysis.pairing.user_mapping import Mapping
from aten_dump.analysis.tasks import RECOMPUTE, Settings, Task, pair_calls
from aten_dump.dump import RankDump
from tests.analysis.by_distance.steps import record as record_steps
from tests.analysis.wrong_ops import Wrong
from tests.dump.building import Builder

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
Body = Callable[[], object]


def path_of(rank: RankDump) -> str:
    return str(rank.directory.parent.parent)


@pytest.fixture
def evidence(record: Callable[..., Any]) -> Callable[..., RankEvidence]:
    """evidence(target, baseline): what a task of both programs gives."""

    def run(
        target: Body, baseline: Body | None = None, settings: Settings | None = None, **options: Any
    ) -> RankEvidence:
        ranks = record(target, **options), record(baseline or target, **options)
        return compare_by_distance(task(*ranks, settings=settings or Settings()))

    return run


def task(target: RankDump, baseline: RankDump, **changes: Any) -> Task:
    made = Task(path_of(target), path_of(baseline), None, (0, 0), (0, 0), Settings())
    return replace(made, **changes)


def chain() -> None:
    torch.relu(X.mul(2)).add(1)


# -- pairs ---------------------------------------------------------------------------------------------------------


def test_only_kinds_that_both_recorded_take_part(record: Callable[..., Any]) -> None:
    ops, both, apis = (record(chain, level=level) for level in ("aten", "mix", "api"))
    assert {pair.target.kind for pair in pair_calls(ops, both, Mapping())} == {"aten"}
    assert {pair.target.kind for pair in pair_calls(both, apis, Mapping())} == {"api"}
    assert pair_calls(ops, apis, Mapping()) == []
    pairs = pair_calls(both, both, Mapping())
    assert [pair.target.name for pair in pairs] == [pair.baseline.name for pair in pairs]
    assert {pair.target.kind for pair in pairs} == {"aten", "api"}


def test_what_the_user_pins_is_paired(record: Callable[..., Any]) -> None:
    def body() -> None:
        X.exp()
        X.exp()

    one, other = record(body, level="aten"), record(body, level="aten")
    first, second = "Aten.exp.0.forward", "Aten.exp.1.forward"
    crossed = Mapping(calls={first: second, second: first, "Aten.none.0.forward": first})
    pairs = {p.target.name: (p.baseline.name, p.how) for p in pair_calls(one, other, crossed)}
    assert pairs == {first: (second, "mapping"), second: (first, "mapping")}
    unknown = Mapping(calls={first: "Aten.none.0.forward"})
    assert {p.how for p in pair_calls(one, other, unknown)} == {"sequence"}


def test_what_the_user_pins_is_found_beside_calls_that_one_side_alone_recorded(record: Callable[..., Any]) -> None:
    """The baseline has no Python-level calls: those of the target have no number among what is aligned."""
    target = record(lambda: (X.exp(), X.sin(), X.neg()))
    baseline = record(lambda: (X.cos(), X.neg(), X.exp(), X.sin()), level="aten")
    first, second = "Aten.exp.0.forward", "Aten.sin.0.forward"
    pairs = {
        p.target.name: (p.baseline.name, p.how) for p in pair_calls(target, baseline, Mapping(calls={first: second}))
    }
    assert pairs[first] == (second, "mapping")
    assert second not in pairs


def test_recomputed_calls_and_their_originals(record: Callable[..., Any]) -> None:
    def body() -> None:
        w = X.clone().requires_grad_()
        checkpoint(lambda x: x.exp().sin(), w, use_reentrant=False).sum().backward()

    rank = record(body, level="aten")
    pairs = recompute_pairs(rank)
    names = [(p.target.name, p.baseline.name, p.how) for p in pairs]
    assert ("Aten.exp.1.recompute", "Aten.exp.0.forward", "recompute") in names
    assert all(p.target.phase == "recompute" and p.baseline.phase == "forward" for p in pairs)
    found = compare_by_distance(task(rank, rank, control=RECOMPUTE))
    assert found.count("unmatched") == 0 and found.count("same") > 0, "what was not recomputed is no matter"


def test_the_best_kind_that_both_have_is_walked(record: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    rank = record(lambda: model(X), model)
    pairs = pair_calls(rank, rank, Mapping())
    assert {p.target.kind for p in divide([p for p in pairs if p.target.kind != "aten"])[0]} == {"api"}
    assert divide([]) == ([], [])
    primary, others = divide(pairs)
    assert {p.target.kind for p in primary} == {"aten"} and {p.target.kind for p in others} == {"api", "module"}
    assert len(primary) + len(others) == len(pairs)
    modules = [p for p in pairs if p.target.kind == "module"]
    inner, outer = divide(modules)
    assert {p.target.module for p in inner} == {"0", "1"}, "the innermost"
    assert {p.target.module for p in outer} == {""}


# -- sources -------------------------------------------------------------------------------------------------------


def test_the_step_before_tells_what_was_inherited(tmp_path: Path) -> None:
    memory = [torch.zeros(4), torch.zeros(4)]

    def body(number: int, factor: float) -> Callable[[int], object]:
        return lambda step: memory[number].add_(X, alpha=factor)

    paths = [str(record_steps(tmp_path / str(n), body(n, factor), steps=2)) for n, factor in enumerate((1.0, 1.5))]
    settings = Settings()
    alone = compare_by_distance(Task(*paths, None, (1, 1), (0, 0), settings))
    after = compare_by_distance(Task(*paths, None, (1, 1), (0, 0), settings, before=(0, 0)))
    assert [f.kind for f in alone.findings][:1] == ["source"]
    assert "source" not in [f.kind for f in after.findings]
    inherited = [row for row in after.rows if row.note == "inherited from the step before"]
    assert [(row.slot, row.status) for row in inherited] == [("input.0", "within")]


# -- what comes back -----------------------------------------------------------------------------------------------


def test_equal_recordings(evidence: Callable[..., RankEvidence]) -> None:
    found = evidence(chain)
    assert {row.status for row in found.rows} == {"same"}
    assert (found.findings, found.notes, found.level, found.unknown_ends) == ((), (), "tensor", ())
    assert (found.proven, found.judged, found.unproven) == (3, 3, ())
    assert found.calls[0] == found.calls[1] == sum(found.pairs.values())
    assert found.paired["Aten.mul.0.forward"] == "Aten.mul.0.forward"
    assert found.levels == {"tensor": len(found.rows)}
    assert pickle.loads(pickle.dumps(found)) == found, "plain values, which travel between processes"


def test_rows_and_findings_are_in_execution_order(record: Callable[..., Any]) -> None:
    with (
        Wrong(torch.ops.aten.mul.Tensor, 0, result=lambda r: r * 1.01),
        Wrong(torch.ops.aten.add.Tensor, 0, result=lambda r: r * 1.01),
    ):
        target = record(chain)
    found = compare_by_distance(task(target, record(chain)))
    ids = [row.place.id for row in found.rows]
    assert ids == sorted(ids) and len(set(ids)) > 3
    assert [f.row.place.call for f in found.findings] == ["Aten.mul.0.forward", "Aten.add.0.forward"]


def test_the_cause_names_its_backward(evidence: Callable[..., RankEvidence]) -> None:
    def body(factor: float) -> Body:
        return lambda: X.clone().requires_grad_().exp().clamp(0, factor).sum().backward()

    cause = evidence(body(5.0), body(9.0)).findings[0]
    assert cause.row.place.call == "Aten.clamp.0.forward"
    assert cause.row.place.backward and "backward" in cause.row.place.backward


def test_calls_without_a_counterpart_say_what_became_of_them(evidence: Callable[..., RankEvidence]) -> None:
    def notes(found: RankEvidence, side: str) -> dict[str, str]:
        rows = [row for row in found.rows if row.status == "unmatched" and getattr(row, side) is not None]
        assert all(getattr(row, "baseline" if side == "target" else "target") is None for row in rows)
        return {row.place.call: row.note for row in rows}

    z = torch.linspace(0.1, 3.0, 64)
    found = evidence(lambda: ((z * 0.3).sin(), X.exp()), lambda: (z / (1 / 0.3)).sin(), level="aten")
    assert notes(found, "target") == {
        "Aten.mul.0.forward": "what it leads to agrees within noise",
        "Aten.exp.0.forward": "nothing that has a counterpart reads what it made",
    }
    assert notes(found, "baseline") == {"Aten.div.0.forward": "what it leads to agrees within noise"}
    found = evidence(lambda: (z * 0.4).sin(), lambda: z.sin(), level="aten")
    assert notes(found, "target") == {"Aten.mul.0.forward": "what it leads to differs"}
    found = evidence(lambda: (z * 0.4).sin(), lambda: z.sin(), level="aten", data="structure")
    assert notes(found, "target") == {"Aten.mul.0.forward": NOT_COMPARED}


@pytest.mark.parametrize(
    ("data", "level"), [("tensor", "tensor"), ("statistic", "statistic"), ("hash", "hash"), ("structure", "none")]
)
def test_the_level_is_the_best_that_was_compared(evidence: Callable[..., RankEvidence], data: str, level: str) -> None:
    found = evidence(chain, data=data)
    assert found.level == level and level in found.levels


def test_what_could_only_be_estimated_is_named(evidence: Callable[..., RankEvidence]) -> None:
    found = evidence(chain, data="statistic")
    assert found.unproven == ("Aten.mul.0.forward", "Aten.relu.0.forward", "Aten.add.0.forward")
    assert (found.proven, found.judged) == (0, 3)


def test_losses_of_another_scale_are_noted(tmp_path: Path) -> None:
    def path(name: str, scale: float) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=bool(scale))

        def body(step: int) -> None:
            scaler.scale(model(X).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return record_steps(tmp_path / name, body, model)

    scaled, plain, again = (
        open_dump(path(name, scale)).rank(0, 0)
        for name, scale in (("scaled", 1024.0), ("plain", 0.0), ("again", 1024.0))
    )
    text = "the loss is scaled by 1024 in the target, by nothing in the baseline"
    assert any(text in note for note in compare_by_distance(task(scaled, plain)).notes)
    assert not any("scaled" in note for note in compare_by_distance(task(scaled, again)).notes)


def test_an_interrupted_side_is_noted(tmp_path: Path) -> None:
    done, cut = tmp_path / "done", tmp_path / "cut"
    Builder(done).finish()
    Builder(cut).finish(commit=False)
    whole, part = open_dump(done).rank(0, 0), open_dump(cut).rank(0, 0)
    for pair, side in (((whole, part), "baseline"), ((part, whole), "target")):
        (text,) = compare_by_distance(task(*pair)).not_whole
        assert text.startswith(f"the {side} is interrupted")
    assert compare_by_distance(task(whole, whole)).not_whole == ()


def test_renamed_modules_are_found(record: Callable[..., Any]) -> None:
    def model(name: str) -> nn.Module:
        torch.manual_seed(0)
        found = nn.Module()
        found.add_module(name, nn.Linear(4, 2))
        found.forward = lambda x: getattr(found, name)(x).relu()  # type: ignore[assignment]
        return found

    one, other = model("fc"), model("dense")
    found = compare_by_distance(task(record(lambda: one(X), one), record(lambda: other(X), other)))
    assert found.modules == {"fc": "dense"} and found.findings == ()


def test_pairs_that_turned_out_to_be_none_are_not_counted(evidence: Callable[..., RankEvidence]) -> None:
    q, k = torch.randn(4, 4), torch.randn(4, 4)
    found = evidence(lambda: ((q.exp() * 0.3) @ k).sin(), lambda: ((q.exp() @ k) * 0.3).sin(), level="aten")
    assert found.findings == ()
    assert "Aten.mm.0.forward" not in found.paired and found.paired["Aten.sin.0.forward"] == "Aten.sin.0.forward"


def test_the_control_sets_the_floor(record: Callable[..., Any]) -> None:
    def run(factor: float) -> RankDump:
        with Wrong(torch.ops.aten.mul.Tensor, 0, result=lambda r: r * factor):
            found: RankDump = record(chain, data="statistic")
        return found

    base, control = run(1.0), path_of(run(1.001))
    for factor, status in ((1.003, "within"), (1.01, "different")):
        found = compare_by_distance(task(run(factor), base, control=control))
        rows = [row for row in found.rows if row.place.call == "Aten.mul.0.forward" and row.slot == "output.0"]
        assert [(row.status, row.floor_from) for row in rows] == [(status, "control")]
