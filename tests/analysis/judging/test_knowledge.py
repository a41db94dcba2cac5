"""What a walk knows: arguments that differ, results of both, regions, and the first call that is wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.flow.cones import Cone
from aten_dump.analysis.judging.knowledge import Knowledge
from aten_dump.analysis.rerun.run_region import Piece
from aten_dump.analysis.tasks import Settings
from tests.analysis.by_hand import knowledge
from tests.analysis.wrong_ops import Wrong

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def knows(record: Callable[..., Any]) -> Callable[..., Knowledge]:
    def make(target: Any, baseline: Any = None, **options: Any) -> Knowledge:
        return knowledge(record(target), record(baseline or target), **options)

    return make


def chain() -> None:
    X.mul(2).view(2, 2).add(1).relu()


def cone(found: Knowledge, side: int, *names: str) -> Cone:
    rank = (found.target, found.baseline)[side]
    calls = [rank[f"Aten.{name}.0.forward"] for name in names]
    return Cone((calls[-1].outputs,), tuple(map(Piece, calls)), ())


def test_other_arguments_and_those_that_precisions_explain(knows: Callable[..., Knowledge]) -> None:
    found = knows(lambda: X.to(torch.bfloat16).clamp(0, 1), lambda: X.to(torch.float16).clamp(0, 2))
    name = "Aten._to_copy.0.forward"
    assert [str(d) for d in found.differences(found.target[name], found.baseline[name])] == [
        "dtype is torch.bfloat16, in the baseline torch.float16"
    ]
    found.sources.precisions.add(("bfloat16", "float16"))
    assert found.differences(found.target[name], found.baseline[name]) == []
    name = "Aten.clamp.0.forward"
    assert [d.name for d in found.differences(found.target[name], found.baseline[name])] == ["max"], "no dtype"


def test_results_that_both_made(knows: Callable[..., Knowledge]) -> None:
    found = knows(lambda: X.view(2, 2).max(1), lambda: X.view(2, 2).max())
    one, other = (rank["Aten.max.0.forward"] for rank in (found.target, found.baseline))
    assert list(found.results(one, other)) == ["output.0"]
    values = found.results(one, other)["output.0"]
    assert values == (one.outputs[0], other.outputs)
    view = found.target["Aten.view.0.forward"]
    assert found.results(view, view) == {}, "a view makes nothing"


def test_what_a_cone_starts_from(knows: Callable[..., Knowledge]) -> None:
    found = knows(chain)
    values = [rank["Aten.mul.0.forward"] for rank in (found.target, found.baseline)]
    start = values[0].inputs[0][0]
    begins = Cone((values[0].outputs,), (), (start, values[0].outputs))
    assert found.cut_inputs(begins).worst == "same", "nothing is known"
    found.known.keep(start, values[1].inputs[0][0], State("within", 0.25, 4))
    assert (found.cut_inputs(begins).worst, found.cut_inputs(begins).depth) == ("within", 4)
    found.known.keep(values[0].outputs, values[1].outputs, State("different", 0.5))
    assert (found.cut_inputs(begins).worst, found.cut_inputs(begins).error) == ("different", 0.5)


def test_regions_are_noted_at_their_worst(knows: Callable[..., Knowledge]) -> None:
    found = knows(chain)
    first = cone(found, 0, "mul", "add"), cone(found, 1, "mul")
    ids = {name: found.target[f"Aten.{name}.0.forward"].id for name in ("mul", "add", "relu")}
    found.note_region(first, "within", proven=True)
    assert found.proofs.proven == {ids["mul"], ids["add"]}, "of the target"
    assert found.proofs.region_status == {
        ("target", ids["mul"]): "within",
        ("target", ids["add"]): "within",
        ("baseline", found.baseline["Aten.mul.0.forward"].id): "within",
    }
    found.note_region((cone(found, 0, "add", "relu"), cone(found, 1, "add")), "different", proven=False)
    assert found.proofs.region_status["target", ids["add"]] == "different"
    assert found.proofs.region_status["target", ids["mul"]] == "within"
    assert (found.proofs.proven, found.proofs.estimated) == ({ids["mul"]}, {ids["add"], ids["relu"]})
    found.note_region((cone(found, 0, "mul", "add"), cone(found, 1, "add")), "same", proven=True)
    assert found.proofs.region_status["target", ids["add"]] == "different", "what was seen once stays"
    assert found.proofs.proven == {ids["mul"]}, "what was only estimated once is not proven by another region"


def test_the_first_call_that_is_off_in_a_region(record: Callable[..., Any]) -> None:
    with Wrong(torch.ops.aten.add.Tensor, 0, result=lambda r: r * 1.01):
        target = record(chain)
    found = knowledge(target, record(chain))
    names = ("mul", "view", "add", "relu")
    cones = cone(found, 0, *names), cone(found, 1, *names)
    wrong = found.wrong_in(cones)
    assert wrong is not None
    assert (wrong[0].name, wrong[1]) == ("Aten.add.0.forward", 0)
    assert wrong[2] == "Aten.add.0.forward.output.0 is off by 0.01 (relative L2) from a float64 replay"
    other = found.wrong_in((cones[1], cones[0]))
    assert other is not None and other[1] == 1, "the side on which it is"
    assert found.wrong_in((cones[1],)) is None
    switched_off = knowledge(target, target, Settings(replay=False))
    assert switched_off.wrong_in(cones) is None


def test_rounding_is_not_wrong(record: Callable[..., Any]) -> None:
    with Wrong(torch.ops.aten.add.Tensor, 0, result=lambda r: r * (1 + 2**-23)):
        target = record(chain)
    found = knowledge(target, target)
    assert found.wrong_in((cone(found, 0, "mul", "add"), cone(found, 1, "mul", "add"))) is None
