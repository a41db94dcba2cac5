"""Are two values that stand at one place the same thing?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.flow.counterparts import Counterparts
from aten_dump.analysis.flow.wiring import Wiring
from aten_dump.analysis.judging.knowledge import Knowledge
from aten_dump.dump import Call, RankDump, Value
from tests.analysis.by_hand import knowledge

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
NEAR = X * (1 + 2**-23)
Body = Callable[[], object]


@pytest.fixture
def knows(record: Callable[..., Any]) -> Callable[..., Knowledge]:
    def make(target: Body, baseline: Body) -> Knowledge:
        return knowledge(record(target), record(baseline))

    return make


Knows = Callable[..., Knowledge]


def read_by(knows: Knowledge, name: str, slot: int = 0) -> tuple[Value, Value]:
    """Return what calls of this name are given on both sides."""
    return tuple(rank[f"Aten.{name}.forward"].inputs[0][slot] for rank in (knows.target, knows.baseline))  # type: ignore[return-value]


def made_by(rank: RankDump, name: str) -> Value:
    found: Value = rank[f"Aten.{name}.forward"].outputs
    return found


def note(knows: Knowledge, name: str, state: State) -> None:
    """Note that the results of calls of this name are counterparts."""
    knows.known.keep(made_by(knows.target, name), made_by(knows.baseline, name), state)


WITHIN = State("within", 0.5, 4, 0.25)


def test_equal_bits_are_the_same_thing_and_stay_known(knows: Knows) -> None:
    found = knows(lambda: X.relu(), lambda: X.relu())
    pair = read_by(found, "relu.0")
    assert found.known.find(*pair) is None
    assert found.wiring.state(*pair) == State("same")
    assert found.known.find(*pair) == State("same")


def test_other_bits_that_no_paired_call_made_are_not_known(knows: Knows) -> None:
    found = knows(lambda: X.relu(), lambda: NEAR.relu())
    assert found.wiring.state(*read_by(found, "relu.0")) is None
    found = knows(lambda: X.exp().relu(), lambda: NEAR.exp().relu())
    assert found.wiring.state(*read_by(found, "relu.0")) is None, "of paired calls that nobody judged yet"


def test_results_of_paired_calls_have_the_state_that_was_found(knows: Knows) -> None:
    found = knows(lambda: X.exp().relu(), lambda: NEAR.exp().relu())
    note(found, "exp.0", WITHIN)
    assert found.wiring.state(*read_by(found, "relu.0")) == WITHIN


def test_the_same_view_of_counterparts(knows: Knows) -> None:
    found = knows(lambda: X.exp().view(2, 2).t().relu(), lambda: NEAR.exp().view(2, 2).t().relu())
    note(found, "exp.0", WITHIN)
    pair = read_by(found, "relu.0")
    state = found.wiring.state(*pair)
    assert state is not None
    assert (state.status, state.depth, state.noise) == ("within", 4, 0.25)
    assert state.error == found.known.close(*pair).error != 0.5, "of what is seen"


def test_a_view_of_what_was_the_same_is_within_if_its_bits_differ(knows: Knows) -> None:
    found = knows(lambda: X.exp().view(2, 2).relu(), lambda: NEAR.exp().view(2, 2).relu())
    note(found, "exp.0", State("same", depth=3))
    assert found.wiring.state(*read_by(found, "relu.0")) == State("within", depth=3)


def test_another_view_is_another_thing(knows: Knows) -> None:
    found = knows(lambda: X.exp()[:2].relu(), lambda: NEAR.exp()[2:].relu())
    note(found, "exp.0", WITHIN)
    assert found.wiring.state(*read_by(found, "relu.0")) is None
    found = knows(lambda: X.exp().view(2, 2).t().relu(), lambda: NEAR.exp().view(2, 2).relu())
    note(found, "exp.0", WITHIN)
    assert found.wiring.state(*read_by(found, "relu.0")) is None


def test_another_part_of_a_split_is_another_thing(knows: Knows) -> None:
    found = knows(lambda: X.exp().chunk(2)[0].relu(), lambda: NEAR.exp().chunk(2)[1].relu())
    note(found, "exp.0", WITHIN)
    assert found.wiring.state(*read_by(found, "relu.0")) is None


def test_results_of_calls_that_are_no_pair_are_not_the_same(knows: Knows) -> None:
    found = knows(lambda: (X.exp(), X.exp())[0].relu(), lambda: (NEAR.exp(), NEAR.exp())[1].relu())
    for number in range(2):
        note(found, f"exp.{number}", WITHIN)
    assert found.wiring.state(*read_by(found, "relu.0")) is None


def test_equal_bits_take_the_depth_of_what_is_known(knows: Knows) -> None:
    found = knows(lambda: (X.exp(), X.relu()), lambda: (X.exp(), X.relu()))
    target = read_by(found, "exp.0")[0]
    found.known.keep(target, made_by(found.baseline, "exp.0"), State("within", depth=6))
    assert found.wiring.state(*read_by(found, "relu.0")) == State("same", depth=6)


# -- memory from outside -------------------------------------------------------------------------------------------


def test_views_of_memory_from_outside_are_known_one_after_the_other(knows: Knows) -> None:
    found = knows(lambda: (X.exp(), X.view(2, 2).t().relu()), lambda: (NEAR.exp(), NEAR.view(2, 2).t().relu()))
    pair = read_by(found, "relu.0")
    assert not found.wiring.is_from_outside(*pair), "a view call showed them"
    outside = read_by(found, "exp.0")
    assert found.wiring.is_from_outside(*outside)
    found.known.keep(*outside, WITHIN)
    assert found.wiring.state(*pair) is None, "what it is a view of is not known yet"
    for seen in (read_by(found, "t.0"), pair):
        state = found.wiring.state(*seen)
        assert state is not None and (state.status, state.depth) == ("within", 4)


def test_memory_from_outside_seen_with_another_geometry(record: Callable[..., Any]) -> None:
    """No call shows the view: it was made before the recording."""
    views = [(t, t.view(2, 2)) for t in (X.clone(), NEAR.clone())]
    found = knowledge(*(record(lambda pair=pair: (pair[0].exp(), pair[1].relu())) for pair in views))
    pair = read_by(found, "relu.0")
    assert found.wiring.is_from_outside(*pair)
    assert found.wiring.state(*pair) is None, "nothing is known of its memory"
    found.known.keep(*read_by(found, "exp.0"), WITHIN)
    state = found.wiring.state(*pair)
    assert state is not None and (state.status, state.depth) == ("within", 4)


def test_one_side_from_outside_is_not_both(knows: Knows) -> None:
    found = knows(lambda: X.exp().relu(), lambda: NEAR.relu())
    assert not found.wiring.is_from_outside(*read_by(found, "relu.0"))
    found = knows(lambda: NEAR.relu(), lambda: X.exp().relu())
    assert not found.wiring.is_from_outside(*read_by(found, "relu.0"))


def test_a_sparse_tensor_that_was_written_through_its_values_is_the_same_if_they_are(
    record: Callable[..., Any],
) -> None:
    def body(dense: torch.Tensor) -> Body:
        sparse = dense.view(2, 2).to_sparse()

        def run() -> None:
            sparse.values().mul_(2)
            sparse.neg()

        return run

    found = knowledge(record(body(X)), record(body(NEAR)))
    pair = read_by(found, "neg.0")
    assert not found.wiring.is_from_outside(*pair)
    assert found.wiring.state(*pair) is None, "nothing is known of its values"
    note(found, "mul_.0", WITHIN)
    state = found.wiring.state(*pair)
    assert state is not None and (state.status, state.depth) == ("within", 4)


# -- where geometry cannot tell ------------------------------------------------------------------------------------


def test_paired_views_with_the_same_arguments(knows: Knows) -> None:
    """A view of memory that was not seen whole: the calls that showed it are asked."""
    big, near = torch.arange(8.0), torch.arange(8.0) * (1 + 2**-23)

    def body(whole: torch.Tensor, start: int) -> Body:
        part = whole[1:7]
        return lambda: (part.exp(), part.view(2, 3)[:, start : start + 1].relu())

    for start, known in ((1, True), (2, False)):
        found = knows(body(big, 1), body(near, start))
        found.known.keep(*read_by(found, "exp.0"), WITHIN)
        assert found.wiring.state(*read_by(found, "slice.0")) is not None
        state = found.wiring.state(*read_by(found, "relu.0"))
        assert (state is not None and state.status == "within") == known


@pytest.mark.parametrize("alike", [True, False])
def test_calls_that_show_a_view_must_be_given_the_same(knows: Knows, alike: bool) -> None:
    found = knows(lambda: (X.exp(), X.view(2, 2).relu()), lambda: (NEAR.exp(), NEAR.view(2, 2).relu()))
    known, asked = Counterparts(read_data=True), []

    def same_arguments(target: Call, baseline: Call) -> bool:
        asked.append((target.name, baseline.name))
        return alike

    wiring = Wiring(found.flows, known, same_arguments)
    wiring.pairs = found.wiring.pairs
    known.keep(*read_by(found, "exp.0"), WITHIN)
    state = wiring.state(*read_by(found, "relu.0"))
    assert (state is not None) == alike
    assert asked == [("Aten.view.0.forward", "Aten.view.0.forward")]
    wiring.pairs = {}
    assert Wiring(found.flows, Counterparts(read_data=True), same_arguments).state(*read_by(found, "relu.0")) is None
    assert len(asked) == 1, "calls that are no pair are not asked about"


def test_calls_that_read_what_paired_calls_made(knows: Knows) -> None:
    found = knows(lambda: (X.exp() + X, X.sin() + X), lambda: (X.exp() + X, X.sin() + X))
    exp, sin = ([rank[f"Aten.{op}.0.forward"] for rank in (found.target, found.baseline)] for op in ("exp", "sin"))
    first, second = ([rank[f"Aten.add.{n}.forward"] for rank in (found.target, found.baseline)] for n in (0, 1))
    reads, found.wiring.pairs = found.wiring.reads_of_pairs, {}
    assert reads(exp[0], exp[1]), "all from outside"
    assert not reads(first[0], first[1]), "nothing is a pair"
    found.wiring.pairs = {exp[0].id: exp[1], sin[0].id: sin[1]}
    assert reads(first[0], first[1]) and reads(second[0], second[1])
    assert not reads(first[0], second[1]) and not reads(first[0], exp[1])
