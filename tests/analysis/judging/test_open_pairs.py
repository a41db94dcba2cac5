"""Pairs whose inputs or arguments are open: by meaning in float64, by distance, no pair at all, or a difference."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.evidence.user_rules import Rule
from aten_dump.analysis.flow import regions
from aten_dump.analysis.flow.regions import Meaning
from aten_dump.analysis.judging.input_links import Link, open_links
from aten_dump.analysis.judging.knowledge import Knowledge
from aten_dump.analysis.judging.open_pairs import OpenPairs
from aten_dump.analysis.judging.pair_walk import Walk
from aten_dump.analysis.outcomes.region_differences import region_text
from aten_dump.analysis.pairing.alignment import How
from aten_dump.analysis.tasks import Settings
from aten_dump.dump import RankDump, Value
from tests.analysis.by_hand import knowledge
from tests.analysis.wrong_ops import Wrong

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
Z = torch.linspace(0.1, 3.0, 64)
Body = Callable[[], object]


def scaled(factor: float = 0.3) -> Body:
    return lambda: (Z * factor).sin()


def divided() -> Body:
    """The same as scaled(), but for roundings."""
    return lambda: (Z / (1 / 0.3)).sin()


class Opened:
    """One pair of two recordings that were walked up to it, before it is resolved."""

    def __init__(self, knows: Knowledge, name: str, how: How) -> None:
        self.knows = knows
        self.pair = Pair(knows.target[name], knows.baseline[name], how)
        self.links = knows.links.of(self.pair)
        self.differences = knows.differences(self.pair.target, self.pair.baseline)
        self.open_pairs = OpenPairs(knows)

    def resolve(self) -> bool:
        return self.open_pairs.resolve(self.pair, self.links, self.differences)

    @property
    def link(self) -> Link:
        return self.links[0]


def walked_up_to(name: str, target: RankDump, baseline: RankDump, settings: Settings | None) -> Knowledge:
    """Return what is known when the pairs before the calls of a name were walked."""
    knows = knowledge(target, baseline, settings)
    pairs = dict(knows.wiring.pairs)
    ends = target[name].id, baseline[name].id
    before = [
        Pair(target.call(id), other, "module") for id, other in pairs.items() if id < ends[0] and other.id < ends[1]
    ]
    Walk(knows).run(before)
    knows.wiring.pairs = pairs
    return knows


@pytest.fixture
def opened(record: Callable[..., Any]) -> Callable[..., Opened]:
    """opened(name, target, baseline): the pair of calls of this name; those before it were walked."""

    def make(
        name: str,
        target: Body,
        baseline: Body,
        *,
        how: How = "module",
        settings: Settings | None = None,
        wrong: Any = None,
        **options: Any,
    ) -> Opened:
        if wrong is None:
            one = record(target, **options)
        else:
            with wrong:
                one = record(target, **options)
        return Opened(walked_up_to(name, one, record(baseline, **options), settings), name, how)

    return make


Opens = Callable[..., Opened]
SIN, ADD = "Aten.sin.0.forward", "Aten.add.0.forward"


def test_a_region_that_means_the_same_settles_an_input(opened: Opens) -> None:
    fresh = opened(SIN, scaled(), divided())
    link = fresh.link
    assert link.state is None
    fresh.open_pairs.settle(fresh.pair, link)
    assert link.said is not None and link.state is not None
    assert (link.said.status, link.said.guilty, link.said.floor_from, link.text) == ("within", False, "semantics", "")
    assert (link.said.ratio, link.state.depth) == (0.0, 1)
    ids = {call.id for call in link.cones[0].calls} if link.cones else set()
    assert ids and ids <= fresh.knows.proofs.proven


def test_a_region_is_as_unlike_as_what_it_starts_from(opened: Opens) -> None:
    wrong = Wrong(torch.ops.aten.exp.default, 0, result=lambda r: r * 1.5)
    pair = opened(SIN, lambda: (Z.exp() * 0.3).sin(), lambda: (Z.exp() / (1 / 0.3)).sin(), wrong=wrong)
    pair.open_pairs.settle(pair.pair, pair.link)
    assert pair.link.said is not None
    assert (pair.link.said.status, pair.link.said.guilty) == ("different", False), "the cause is behind it"


def test_a_region_with_a_wrong_call_is_guilty(opened: Opens) -> None:
    wrong = Wrong(torch.ops.aten.mul.Tensor, 0, result=lambda r: r * 1.01)
    pair = opened(SIN, scaled(), divided(), wrong=wrong)
    link = pair.link
    pair.open_pairs.settle(pair.pair, link)
    assert link.said is not None
    assert (link.said.status, link.said.guilty, link.said.floor_from) == ("different", True, "replay")
    assert link.said.ratio == 2, "as sure as one that is twice over its floor"
    assert "is off by 0.01" in link.text and "Aten.mul.0.forward in the target stand against" in link.text
    mul = pair.knows.target["Aten.mul.0.forward"].id
    assert mul in pair.knows.proofs.estimated and pair.knows.proofs.region_status["target", mul] == "different"


def test_what_differs_in_meaning_begins_here(opened: Opens) -> None:
    pair = opened(SIN, lambda: X.mul(3).sin(), lambda: X.add(X).sin())
    link = pair.link
    assert list(open_links(pair.links)) == [link]
    assert pair.resolve()
    assert link.said is not None
    assert (link.said.status, link.said.guilty, link.said.floor_from) == ("different", True, "semantics")
    assert link.said.ratio is not None and link.said.ratio > 2
    assert link.text.endswith("in float64 from the same values they differ by 0.5 (relative L2)")


def test_a_rule_goes_first(opened: Opens) -> None:
    settings = Settings(rules=(Rule(r"sin\.0\.forward\.input", "ignore"),))
    pair = opened(SIN, lambda: X.mul(3).sin(), lambda: X.add(X).sin(), settings=settings)
    link = pair.link
    pair.open_pairs.settle(pair.pair, link)
    assert link.said is not None and (link.said.status, link.said.floor_from) == ("within", "rule")
    assert link.text == link.said.note


def test_arguments_that_name_the_same_otherwise_are_dropped(opened: Opens) -> None:
    pair = opened("Aten.sum.0.forward", lambda: Z[None].sum((0, 1)), lambda: Z[None].sum((1, 0)))
    assert pair.differences and not list(open_links(pair.links))
    assert pair.resolve()
    assert pair.differences == []


def test_arguments_that_make_no_difference_are_dropped(opened: Opens) -> None:
    """x + 2 * y against x + y * 2: what both calls make means the same, whatever they were given."""
    pair = opened(ADD, lambda: X.add(Y.exp(), alpha=2), lambda: X.add(Y.exp() * 2))
    assert [d.name for d in pair.differences] == ["alpha"]
    assert pair.resolve()
    assert pair.differences == []
    state = pair.links[1].state
    assert state is not None and state.status == "within"


def test_arguments_that_matter_stay(opened: Opens) -> None:
    pair = opened(ADD, lambda: X.add(Y, alpha=2), lambda: X.add(Y))
    assert pair.resolve()
    assert [d.name for d in pair.differences] == ["alpha"]


@pytest.mark.parametrize(
    ("how", "is_pair"), [("order", False), ("shapeless", False), ("module", True), ("mapping", True)]
)
def test_a_pair_by_its_op_alone_of_other_shapes_is_none(opened: Opens, how: How, is_pair: bool) -> None:
    pair = opened("Aten.exp.0.forward", lambda: X[:2].sqrt().exp(), lambda: X.sin().exp(), how=how)
    assert pair.link.close.shape is not None and pair.link.state is None
    assert pair.resolve() == is_pair
    made = opened("Aten.sum.0.forward", lambda: X.view(2, 2).sum(0), lambda: X.view(2, 2).sum(), how=how)
    assert made.differences and not list(open_links(made.links))
    assert made.resolve() == is_pair


def test_calls_that_meet_later_are_no_pair(opened: Opens) -> None:
    """(q * s) @ k stands against (q @ k) * s: the products are no pair, what both scale is the same."""
    q, k = torch.randn(4, 4), torch.randn(4, 4)
    name = "Aten.mm.0.forward"

    def target() -> None:
        ((q.exp() * 0.3) @ k).sin()

    def baseline() -> None:
        ((q.exp() @ k) * 0.3).sin()

    pair = opened(name, target, baseline, how="order")
    for link in pair.links:
        if not link.close.bitwise:
            assert pair.resolve() is False
    calls = {pair.knows.target.call(number).name for number in pair.open_pairs.cleared}
    assert {"Aten.mul.0.forward", name} <= calls
    assert pair.open_pairs.cleared <= pair.knows.proofs.proven
    again = Opened(pair.knows, name, "order")
    again.open_pairs.cleared = pair.open_pairs.cleared
    for link in again.links:
        if not link.close.bitwise:
            assert again.resolve() is False, "it is known by then"


@pytest.mark.parametrize(
    ("how", "is_pair"),
    [("order", False), ("shapeless", False), ("module", False), ("sequence", False), ("mapping", True)],
)
def test_calls_with_other_arguments_that_meet_later_are_no_pair_but_for_the_user(
    opened: Opens, how: How, is_pair: bool
) -> None:
    """x * 2 * 3 against x * 3 * 2."""

    def body(first: float, second: float) -> Body:
        return lambda: Z.exp().mul(first).mul(second).sin()

    pair = opened("Aten.mul.0.forward", body(2.0, 3.0), body(3.0, 2.0), how=how)
    assert pair.differences and not list(open_links(pair.links))
    assert pair.resolve() == is_pair
    assert bool(pair.open_pairs.cleared) != is_pair
    apart = opened("Aten.mul.0.forward", body(2.0, 3.0), body(3.0, 2.1), how=how)
    assert apart.resolve() and apart.differences, "nothing brings them together"
    assert not apart.open_pairs.cleared


def test_what_nobody_reads_may_meet_in_the_loss(opened: Opens) -> None:
    """The loss is divided on one side: no later call is there on both."""

    def losses(pair: Opened) -> list[tuple[Value, Value]]:
        return [tuple(list(flow.calls())[-1].outputs for flow in pair.knows.flows)]  # type: ignore[list-item]

    for divisor, meets in ((4, True), (5, False)):
        summed = opened(
            "Aten.mse_loss.0.forward", lambda n=divisor: F.mse_loss(X, Y, reduction="sum") / n, lambda: F.mse_loss(X, Y)
        )
        assert OpenPairs(summed.knows).resolve(summed.pair, summed.links, summed.differences), "no end is known"
        open_pairs = OpenPairs(summed.knows, losses(summed))
        assert open_pairs.resolve(summed.pair, summed.links, summed.differences) is not meets


def test_the_user_is_believed_that_calls_are_a_pair(opened: Opens) -> None:
    q, k = torch.randn(4, 4), torch.randn(4, 4)
    pair = opened(
        "Aten.mm.0.forward", lambda: ((q.exp() * 0.3) @ k).sin(), lambda: ((q.exp() @ k) * 0.3).sin(), how="mapping"
    )
    for link in pair.links:
        if not link.close.bitwise:
            assert pair.resolve() is True
    assert pair.link.said is not None and pair.link.said.guilty


# -- where regions cannot be run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.0, "within"), (1.01, "different")],
)
def test_without_bytes_an_input_is_judged_by_its_distance(opened: Opens, factor: float, expected: str) -> None:
    pair = opened(SIN, scaled(0.3 * factor), divided(), data="statistic")
    link = pair.link
    pair.open_pairs.settle(pair.pair, link)
    assert link.said is not None
    assert (link.said.status, link.said.guilty, link.said.floor_from) == (expected, expected == "different", "depth")
    assert link.said.note, "why it was not run"
    assert {call.id for call in link.cones[0].calls} <= pair.knows.proofs.estimated if link.cones else False


def test_what_is_just_over_the_limit_differs(opened: Opens) -> None:
    def settled(off: float) -> Any:
        pair = opened(SIN, scaled(0.3 * (1 + off)), divided(), data="statistic")
        pair.open_pairs.settle(pair.pair, pair.link)
        assert pair.link.said is not None and pair.link.said.ratio is not None
        return pair.link.said

    far = settled(1e-2)
    near, nearer = (settled(1e-2 * times / far.ratio) for times in (1.5, 0.7))
    assert 1 < near.ratio < 2 and (near.status, near.guilty) == ("different", True)
    assert 0 < nearer.ratio < 1 and (nearer.status, nearer.guilty) == ("within", False)


def test_without_any_data_an_input_is_unknown(opened: Opens) -> None:
    pair = opened(SIN, scaled(), divided(), data="structure")
    link = pair.link
    pair.open_pairs.settle(pair.pair, link)
    assert link.said is not None and (link.said.status, link.said.guilty) == ("unknown", False)


def test_hashes_tell_equal_bits_only(opened: Opens) -> None:
    pair = opened(SIN, scaled(), divided(), data="hash")
    link = pair.link
    pair.open_pairs.settle(pair.pair, link)
    assert link.said is not None
    assert (link.said.status, link.said.guilty, link.said.floor_from) == ("different", True, "exact")


def test_integers_that_are_others_are_wrong_unless_noise_may_have_turned_them(opened: Opens) -> None:
    """Their sources agree by statistics alone, so nothing can be run."""

    def read(which: int) -> Body:
        return lambda: (X.gt(1).long(), X.gt(2).long())[which].neg()

    name = "Aten.neg.0.forward"
    others = opened(name, read(0), read(1), data="statistic")
    others.open_pairs.settle(others.pair, others.link)
    assert others.link.said is not None
    assert (others.link.said.status, others.link.said.guilty, others.link.said.floor_from) == (
        "different",
        True,
        "exact",
    )
    for error in (0.0, 1e-7):  # between what both were made of
        between = opened(
            name, lambda: X.gt(1).long().mul(5).neg(), lambda: X.gt(1).long().add(7).neg(), data="statistic"
        )
        for value in between.knows.regions.cone(0, [between.link.target]).cut:
            other = between.knows.known.partner(0, value)
            assert other is not None
            between.knows.known.keep(value, other, State("within", error))
        between.open_pairs.settle(between.pair, between.link)
        assert between.link.said is not None
        assert (between.link.said.status, between.link.said.guilty) == ("different", not error)


# -- what many layers have in common ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["eps", "mean"])
def test_what_each_layer_does_wrong_is_looked_into_at_the_first(
    record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    runs: list[object] = []
    run = regions.run_region
    monkeypatch.setattr(regions, "run_region", lambda *args, **options: runs.append(args) or run(*args, **options))

    def norms(layers: int, is_wrong: bool) -> Body:
        def body() -> None:
            x = torch.linspace(-2, 3, 24).view(3, 8)
            for layer in range(layers):
                size = x.square()
                size = size.sum(-1, keepdim=True) / 7 if wrong == "mean" and is_wrong else size.mean(-1, keepdim=True)
                x = x + (x * (size + (1e-2 if wrong == "eps" and is_wrong else 1e-6)).rsqrt()).sin() * (layer + 1)

        return body

    def looked_into(layers: int) -> int:
        target, baseline = record(norms(layers, True), data="tensor"), record(norms(layers, False), data="tensor")
        knows = knowledge(target, baseline)
        runs.clear()
        Walk(knows).run([Pair(target.call(id), other, "module") for id, other in knows.wiring.pairs.items()])
        assert len(knows.evidence.findings) == (layers if wrong == "mean" else 1), "arguments count where inputs agree"
        return len(runs)

    few, many = looked_into(3), looked_into(9)
    assert few > 20 and many - few <= 6 * 12, "of what comes of it, on both sides, the nearest alone is run"


def test_a_layer_that_is_right_is_not_named_beside_one_that_is_wrong_alike(record: Callable[..., Any]) -> None:
    """Each layer multiplies elsewhere than the baseline does, by the same number; the first by it and once more."""

    def scores(wrong: bool) -> Body:
        def body() -> None:
            x = torch.linspace(-2, 3, 24).view(4, 6)
            for layer in range(4):
                product = x @ (x * 0.35 if not wrong else x).T
                product = product * (0.35 if layer else 0.4) if wrong else product
                x = x + product.softmax(-1) @ x

        return body

    target, baseline = record(scores(True), data="tensor"), record(scores(False), data="tensor")
    knows = knowledge(target, baseline)
    Walk(knows).run([Pair(target.call(id), other, "module") for id, other in knows.wiring.pairs.items()])
    named = {finding.row.place.call for finding in knows.evidence.findings}
    assert named and named <= {"Aten.mul.0.forward", "Aten.t.0.forward", "Aten.mm.0.forward"}


# -- words ---------------------------------------------------------------------------------------------------------


def test_regions_in_words(opened: Opens) -> None:
    def words(target: Body, baseline: Body) -> str:
        pair = opened(SIN, target, baseline)
        return region_text(pair.knows.regions.compare([pair.link.target], [pair.link.baseline]))

    text = "Aten.mul.0.forward in the target stand against Aten.div.0.forward in the baseline"
    assert words(scaled(), divided()) == text
    assert words(scaled(), lambda: Z.sin()) == "Aten.mul.0.forward in the target stand against no ops in the baseline"
    knows = opened(SIN, scaled(), scaled(0.4)).knows
    calls = [rank["Aten.mul.0.forward"] for rank in (knows.target, knows.baseline)]
    cones: Any = [SimpleNamespace(pieces=[0], calls=(call,)) for call in calls]
    assert region_text(Meaning("differs", cones=cones)).endswith("in the baseline: other is 0.3, in the baseline 0.4")

    def long() -> None:
        x = Z
        for number in range(8):
            x = x.mul(1.1 + number)
        x.sin()

    shown = ", ".join(f"Aten.mul.{number}.forward" for number in range(6))
    assert words(long, lambda: Z.exp().sin()).startswith(f"{shown} and 2 more in the target stand against Aten.exp")
    made = words(lambda: (X.exp(), X.cos())[0].sin(), lambda: (X.exp(), X.cos())[1].sin())
    assert made == "it reads what Aten.exp.0.forward made, in the baseline what Aten.cos.0.forward made"
    parts = words(lambda: X.exp().chunk(2)[0].sin(), lambda: X.exp().chunk(2)[1].sin())
    assert parts == "it reads output.0 of Aten.split.0.forward, in the baseline output.1 of Aten.split.0.forward"
    outside = words(lambda: (X.exp(), X.sin())[1], lambda: X.exp().sin())
    assert outside == "it reads what came from outside the step, in the baseline what Aten.exp.0.forward made"
