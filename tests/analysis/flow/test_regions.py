"""Do the calls behind two values mean the same? Cones, their common start, and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.flow import regions
from aten_dump.analysis.flow.cones import Cone
from aten_dump.analysis.flow.regions import Meaning
from aten_dump.analysis.judging.knowledge import Knowledge
from aten_dump.dump import Value
from tests.analysis.by_hand import knowledge

X, Y = torch.linspace(0.1, 3.0, 64), torch.linspace(-1.0, 2.0, 64)
Body = Callable[[], object]
SAME = State("same")


@pytest.fixture
def behind(record: Callable[..., Any]) -> Callable[..., Knowledge]:
    """behind(target, baseline): what is known when the values from outside that both read are counterparts."""

    def make(target: Body, baseline: Body, **options: Any) -> Knowledge:
        knows = knowledge(record(target, **options), record(baseline, **options), kind="aten")
        outside = [
            [v for v in rank.values if flow.maker(v) is None]
            for rank, flow in zip((knows.target, knows.baseline), knows.flows, strict=True)
        ]
        for one in outside[0]:
            for other in outside[1]:
                if knows.known.close(one, other).bitwise:
                    knows.known.keep(one, other, SAME)
        return knows

    return make


Behind = Callable[..., Knowledge]


def last(knows: Knowledge, side: int) -> Value:
    *_, call = knows.flows[side].calls()
    found = call.outputs
    return found if isinstance(found, Value) else next(v for _, v in call.result_values())


def compared(knows: Knowledge) -> Meaning:
    """Compare what the last calls of both sides made."""
    return knows.regions.compare([last(knows, 0)], [last(knows, 1)])


def names(cone: Cone) -> list[str]:
    return [call.name.removeprefix("Aten.").removesuffix(".forward") for call in cone.calls]


# -- cones ---------------------------------------------------------------------------------------------------------


def test_a_cone_goes_back_to_what_is_known(behind: Behind) -> None:
    knows = behind(lambda: X.exp().mul(Y.sin()).relu(), lambda: X.exp())
    cone = knows.regions.cone(0, [last(knows, 0)])
    assert names(cone) == ["exp.0", "sin.0", "mul.0", "relu.0"]
    assert all(knows.flows[0].maker(v) is None for v in cone.cut) and len(cone.cut) == 2
    exp = knows.target["Aten.exp.0.forward"].outputs
    knows.known.keep(exp, last(knows, 1), SAME)
    cone = knows.regions.cone(0, [last(knows, 0)])
    assert names(cone) == ["sin.0", "mul.0", "relu.0"] and exp in cone.cut
    known = knows.regions.cone(0, [exp])
    assert (known.calls, known.cut, known.values) == ((), (exp,), (exp,))


def test_calls_that_nothing_depends_on_are_not_in_it(behind: Behind) -> None:
    knows = behind(lambda: (X.sin(), X.exp().relu())[1], lambda: X.exp())
    assert names(knows.regions.cone(0, [last(knows, 0)])) == ["exp.0", "relu.0"]


def test_views_and_writes_in_place_are_in_it(behind: Behind) -> None:
    def body() -> None:
        made = X.exp()
        made[:2].mul_(3)
        made.view(8, 8).t().contiguous()

    knows = behind(body, lambda: X.exp())
    found = names(knows.regions.cone(0, [last(knows, 0)]))
    assert found == ["exp.0", "slice.0", "mul_.0", "view.0", "t.0", "clone.0"]


def written_through_values(factor: float) -> None:
    sparse = X.view(8, 8).to_sparse()
    sparse.values().mul_(factor)
    sparse.to_dense()


def test_what_was_written_through_a_part_of_a_sparse_tensor_is_in_it(behind: Behind) -> None:
    knows = behind(lambda: written_through_values(2.0), lambda: X.view(8, 8) * 2)
    names_of = names(knows.regions.cone(0, [last(knows, 0)]))
    assert [name for name in names_of if name.startswith(("_to_sparse", "mul_", "_to_dense"))] == [
        "_to_sparse.0",
        "mul_.0",
        "_to_dense.0",
    ]
    assert compared(knows).verdict == "same"
    assert compared(behind(lambda: written_through_values(2.1), lambda: X.view(8, 8) * 2)).verdict == "differs"


def test_of_a_list_only_the_items_that_are_needed(behind: Behind) -> None:
    knows = behind(lambda: torch._foreach_mul([X, Y, X], 2.0)[1].relu(), lambda: X.exp())
    cone = knows.regions.cone(0, [last(knows, 0)])
    assert [(piece.call.api, piece.items) for piece in cone.pieces] == [
        ("Aten._foreach_mul", (1,)),
        ("Aten.relu", None),
    ]
    assert len(cone.cut) == 1


def test_keys_tell_cones_apart(behind: Behind) -> None:
    knows = behind(lambda: (X.exp().relu(), X.sin()), lambda: X.exp())
    values = [knows.target[f"Aten.{name}.0.forward"].outputs for name in ("exp", "relu", "sin")]
    cones = [knows.regions.cone(0, [value]) for value in values]
    assert len({cone.key for cone in cones}) == 3
    assert knows.regions.cone(0, [values[0]]).key == cones[0].key


# -- meaning -------------------------------------------------------------------------------------------------------

SAME_MEANING: dict[str, tuple[Body, Body]] = {
    "other ops": (lambda: X * 0.3, lambda: X / (1 / 0.3)),
    "fused and composed": (lambda: torch.addcmul(X, X, Y, value=0.5), lambda: X + X * Y * 0.5),
    "another order": (lambda: (X + Y) * X, lambda: X * X + Y * X),
    "in place": (lambda: X.exp().mul_(Y).add_(1), lambda: X.exp() * Y + 1),
    "through a view": (lambda: (X.view(8, 8) * 2).t().contiguous(), lambda: X.view(8, 8).t().contiguous() * 2),
    "sums that cancel": (lambda: (X - X * 2).sum(), lambda: -X.sum()),
    "sparse": (lambda: (X * 2).to_sparse(), lambda: (X + X).to_sparse()),
    "integers": (lambda: torch.gt(X, Y).long(), lambda: torch.lt(Y, X).long()),
    "products": (lambda: X.view(8, 8) @ Y.view(8, 8) * 2, lambda: (X.view(8, 8) * 2) @ Y.view(8, 8)),
}


@pytest.mark.parametrize("case", SAME_MEANING)
def test_the_same_meaning(behind: Behind, case: str) -> None:
    knows = behind(*SAME_MEANING[case])
    meaning = compared(knows)
    assert meaning.verdict == "same", meaning
    assert meaning.cones is not None and meaning.cones[0].values == (last(knows, 0),)


OTHER_MEANING: dict[str, tuple[Body, Body, float | None]] = {
    "another scale": (lambda: X * 0.3, lambda: X / (1 / 0.2), 0.5),
    "a little other scale": (lambda: X * (1 + 1e-6), lambda: X / 1, 1e-6),
    "a missing term": (lambda: X * 1, lambda: X + 1e-5, None),
    "another shape": (lambda: X.exp().sum(), lambda: X.exp(), math.inf),
    "another place": (lambda: X.exp().roll(1), lambda: X.exp(), None),
    "a turned element": (lambda: torch.gt(X, Y).long(), lambda: torch.ge(Y, X).long(), None),
}


@pytest.mark.parametrize("case", OTHER_MEANING)
def test_another_meaning(behind: Behind, case: str) -> None:
    target, baseline, error = OTHER_MEANING[case]
    meaning = compared(behind(target, baseline))
    assert meaning.verdict == "differs", meaning
    assert meaning.error > 0 if error is None else meaning.error == pytest.approx(error, rel=1e-4)


def test_both_start_from_the_targets_values_whatever_the_noise(behind: Behind) -> None:
    near = X * (1 + 1e-3)
    knows = behind(lambda: X.exp() * 0.3, lambda: near.exp() / (1 / 0.3))
    assert compared(knows).verdict == "differs", "not known to be counterparts"
    knows = behind(lambda: X.exp() * 0.3, lambda: near.exp() / (1 / 0.3))
    ends = [rank["Aten.exp.0.forward"].inputs[0][0] for rank in (knows.target, knows.baseline)]
    knows.known.keep(ends[0], ends[1], State("different", 1e-3))
    assert compared(knows).verdict == "same"


def test_cones_are_widened_until_both_start_alike(behind: Behind) -> None:
    """The baseline stands on exp(x), which has a counterpart; the target goes on from x."""
    knows = behind(lambda: (X.exp(), X.exp().mul(0.3))[1], lambda: (X.exp(), X.exp().div(1 / 0.3))[1])
    first = [rank["Aten.exp.0.forward"].outputs for rank in (knows.target, knows.baseline)]
    second = [rank["Aten.exp.1.forward"].outputs for rank in (knows.target, knows.baseline)]
    knows.known.keep(first[0], second[1], SAME)
    meaning = compared(knows)
    assert meaning.verdict == "same" and meaning.cones is not None
    assert names(meaning.cones[0]) == ["exp.1", "mul.0"] and names(meaning.cones[1]) == ["div.0"], "as they were"


def test_what_one_side_alone_starts_from_is_as_exact_as_its_dtype(behind: Behind) -> None:
    """A constant that one side reads from memory, rounded to float32, and the other has as a number."""
    third = torch.tensor(1 / 3)
    assert compared(behind(lambda: X * third, lambda: X / 3)).verdict == "same"
    wrong = torch.tensor(1 / 3 * (1 + 1e-4))
    assert compared(behind(lambda: X * wrong, lambda: X / 3)).verdict == "differs"


def test_a_comparison_is_made_once(behind: Behind) -> None:
    knows = behind(lambda: X * 0.3, lambda: X / (1 / 0.3))
    assert compared(knows) is compared(knows)


def test_several_values_at_once(behind: Behind) -> None:
    knows = behind(lambda: (X * 2, X * 3), lambda: (X + X, X + X))
    ours = [knows.target[f"Aten.mul.{n}.forward"].outputs for n in range(2)]
    theirs = [knows.baseline[f"Aten.add.{n}.forward"].outputs for n in range(2)]
    assert knows.regions.compare(ours[:1], theirs[:1]).verdict == "same"
    found = knows.regions.compare(ours, theirs)
    assert (found.verdict, found.error) == ("differs", pytest.approx(0.5))


# -- what cannot be run --------------------------------------------------------------------------------------------


def test_without_bytes_nobody_knows(behind: Behind) -> None:
    found = compared(behind(lambda: X * 0.3, lambda: X / (1 / 0.3), data="statistic"))
    assert found.verdict == "unknown" and found.why and found.cones is not None


def noise(seed: int) -> torch.Tensor:
    return torch.rand(64, generator=torch.Generator().manual_seed(seed))


def test_what_the_target_drew_is_held_against_the_baselines_region(behind: Behind) -> None:
    """The target's region cannot be run in float64, as it draws; the baseline's can."""
    ones = torch.ones(64)

    def random(scale: float) -> Body:
        return lambda: kept(X * scale)

    def plain() -> None:
        X * 2.0 * ones

    found = compared(behind(random(2.0), plain))
    assert found.verdict == "same" and found.error < 1e-6
    assert compared(behind(random(2.01), plain)).verdict == "differs"
    back = compared(behind(plain, random(2.0)))
    assert back.verdict == "unknown" and "random" in back.why, "the reference must run"


def test_what_each_call_of_the_target_rounds_adds_up(behind: Behind) -> None:
    """Twelve roundings are more than those of one op, of whose kind the baseline's region is one."""

    def rounded(last: float) -> Body:
        def step() -> None:
            x = kept(X)
            for _ in range(50):
                x = x * 1.1
            x * last

        return step

    found = compared(behind(rounded(1.0), lambda: X * 1.1**50))
    assert found.verdict == "same" and found.error > 4 * 2**-24
    assert compared(behind(rounded(1.0001), lambda: X * 1.1**50)).verdict == "differs"


def kept(x: torch.Tensor) -> torch.Tensor:
    """Return what a random op makes that keeps everything."""
    return torch.bernoulli(torch.ones(64)) * x


def test_how_rounding_grows_where_the_target_cannot_be_run(behind: Behind) -> None:
    """Two products in half precision nearly cancel, and float32 does not show that they were rounded."""

    def apart(x: torch.Tensor, last: float) -> torch.Tensor:
        return (x * 1.1 - x * last).float()

    def target(last: float) -> Body:
        return lambda: apart(torch.bernoulli(torch.ones(64, dtype=torch.bfloat16)) * X.bfloat16(), last)

    found = compared(behind(target(1.08), lambda: apart(X.bfloat16(), 1.08)))
    assert found.verdict == "same" and found.error > 0.01
    assert compared(behind(target(0.9), lambda: apart(X.bfloat16(), 1.08))).verdict == "differs"


def test_too_many_calls_are_too_many(behind: Behind) -> None:
    def long() -> None:
        x = X
        for _ in range(402):
            x = x + 1

    found = compared(behind(long, lambda: X.exp(), level="aten"))
    assert (found.verdict, found.why) == ("unknown", "the regions are too large to run again while comparing")


@pytest.mark.parametrize("moved", [False, True])
def test_a_view_of_what_both_start_from_is_no_other_start(behind: Behind, moved: bool) -> None:
    """Behind it lies what it was rounded from: a weight, which autocast casts for one op and its gradient."""
    weight = X.view(8, 8)

    def target() -> torch.Tensor:
        half = weight.bfloat16().t()
        return half.exp() + half

    def baseline() -> torch.Tensor:
        half = weight.bfloat16()
        transposed = half.t()
        return (half.exp() * (1.001 if moved else 1)).t() + transposed

    knows = behind(target, baseline)
    for name in ("Aten._to_copy.0.forward", "Aten.t.0.forward"):
        knows.known.keep(knows.target[name].outputs, knows.baseline[name].outputs, SAME)
    meaning = compared(knows)
    assert meaning.verdict == ("differs" if moved else "same"), meaning
    assert meaning.cones is not None and names(meaning.cones[0]) == ["exp.0", "add.0"]


@pytest.mark.parametrize("moved", [False, True])
def test_what_one_side_casts_again_is_rounded_on_neither(behind: Behind, moved: bool) -> None:
    """Autocast casts a weight for each micro-batch; of one batch the cast is what the other's first one is."""
    weight, x = X.view(8, 8), Y.view(8, 8)

    def baseline() -> torch.Tensor:
        one, other = weight.bfloat16().t(), weight.bfloat16().t()
        return torch.cat([x[:4].bfloat16() @ one, x[4:].bfloat16() @ other * (1.001 if moved else 1)]).float()

    knows = behind(lambda: (x.bfloat16() @ weight.bfloat16().t()).float(), baseline)
    for name, other in (("_to_copy.1", "_to_copy.0"), ("t.0", "t.0")):
        ours, theirs = knows.target[f"Aten.{name}.forward"], knows.baseline[f"Aten.{other}.forward"]
        knows.known.keep(ours.outputs, theirs.outputs, SAME)
    assert compared(knows).verdict == ("differs" if moved else "same")


def test_views_are_followed_first_to_what_both_start_from(behind: Behind) -> None:
    """Others may be many: `matmul_backward` reads the other operand, which the gradient wanted is not made of."""

    def body(weight: torch.Tensor, last: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]) -> Body:
        def step() -> None:
            transposed, x = weight.t(), X.view(8, 8)
            for _ in range(70):
                x = x.sin()
            last(weight, transposed, x)

        return step

    weight = Y.view(8, 8)
    target = body(weight, lambda weight, transposed, x: transposed * 2 + x * 0)
    knows = behind(target, body(weight * 1.000001, lambda weight, transposed, x: (weight * 2).t()))
    for name in ["Aten.t.0.forward", *(f"Aten.sin.{number}.forward" for number in range(70))]:
        one, other = knows.target[name], knows.baseline[name]
        knows.known.keep(one.outputs, other.outputs, SAME)
        knows.known.keep(one.inputs[0][0], other.inputs[0][0], SAME)
    assert compared(knows).verdict == "same"


def test_what_has_no_common_start_near_by_is_not_run_from_far_away(behind: Behind, monkeypatch: Any) -> None:
    """Each step of a recurrent network leads to the one before."""

    def body(which: int) -> None:
        x, y = X, Y
        for _ in range(70):
            x, y = x.sin(), y.cos()
        (x, y)[which].tanh()

    knows = behind(lambda: body(0), lambda: body(1))
    for name in [f"Aten.{op}.{number}.forward" for number in range(70) for op in ("sin", "cos")]:
        knows.known.keep(knows.target[name].outputs, knows.baseline[name].outputs, SAME)
    sizes: list[int] = []
    kept = regions.run_region
    monkeypatch.setattr(
        regions, "run_region", lambda pieces, *a, **k: (sizes.append(len(pieces)), kept(pieces, *a, **k))[1]
    )
    assert compared(knows).verdict == "differs" and max(sizes) == 1


def gated(*, in_place: bool, bug: bool = False) -> torch.Tensor:
    """A gated unit's gates lie in one memory, of which each op that works in place writes one part."""
    update, reset, new = (X * 1.5 + Y).view(16, 4).chunk(4, 1)[:3]
    if not in_place:
        raised = update.exp()
        return raised * (reset.sigmoid() * new) + raised
    reset.tanh_() if bug else reset.sigmoid_()
    update.exp_()
    new.mul_(reset)
    return update * new + update


@pytest.mark.parametrize("bug", [False, True])
def test_parts_of_one_memory_are_followed_behind_the_same_write(bug: bool, behind: Behind) -> None:
    """What a part held before another was written is asked of each part, though all show the last write."""
    knows = behind(lambda: gated(in_place=True, bug=bug), lambda: gated(in_place=False))
    given = knows.target["Aten.exp_.0.forward"], knows.baseline["Aten.exp.0.forward"]
    knows.known.keep(*(call.input_values()[0][1] for call in given), SAME)
    found = knows.regions.compare([last(knows, 0)], [last(knows, 1)])
    assert (found.verdict, found.error < 1e-12) == (("differs", False) if bug else ("same", True)), "both were run"
