"""Which call of two regions is the odd one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.flow.cones import Cone
from aten_dump.analysis.flow.counterparts import Counterparts
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.odd_calls import odd_call
from aten_dump.analysis.rerun.run_region import Piece

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([4.0, 3.0, 2.0, 5.0])
Body = Callable[[], object]


@pytest.fixture
def odd(record: Callable[..., Any]) -> Callable[[Body, Body], tuple[str, int]]:
    """odd(target, baseline): the odd one of all ops of two programs."""

    def find(target: Body, baseline: Body) -> tuple[str, int]:
        flows = [DataFlow(record(body), "aten") for body in (target, baseline)]
        cones = [Cone((), tuple(map(Piece, flow.calls())), ()) for flow in flows]
        call, side = odd_call((cones[0], cones[1]), (flows[0], flows[1]), _known(flows))
        assert call.rank == flows[side].rank
        return call.name.removeprefix("Aten.").removesuffix(".forward"), side

    return find


def _known(flows: Sequence[DataFlow]) -> Counterparts:
    """What both read first and second from outside are counterparts."""
    known = Counterparts(read_data=True)
    ours, theirs = (
        dict.fromkeys(v for c in flow.calls() for _, v in c.input_values() if flow.maker(v) is None) for flow in flows
    )
    for one, other in zip(ours, theirs, strict=False):
        known.keep(one, other, State("same"))
    return known


Odd = Callable[[Body, Body], tuple[str, int]]


def test_the_op_that_the_other_side_lacks(odd: Odd) -> None:
    assert odd(lambda: X.exp().mul(2).sin(), lambda: X.exp().sin()) == ("mul.0", 0)
    assert odd(lambda: X.exp().sin(), lambda: X.exp().mul(2).sin()) == ("mul.0", 1)


def test_what_computes_comes_before_copies_that_one_side_has(odd: Odd) -> None:
    assert odd(lambda: X.mul(2).clone(), lambda: X.mul(3)) == ("mul.0", 0)
    assert odd(lambda: X.mul(2).clone(), lambda: X.mul(2)) == ("clone.0", 0)
    assert odd(lambda: X.mul(2).half(), lambda: X.mul(3)) == ("_to_copy.0", 0), "a cast computes"


def test_the_targets_comes_first_and_of_several_the_last(odd: Odd) -> None:
    assert odd(lambda: X.mul(2), lambda: X.sin()) == ("mul.0", 0)
    assert odd(lambda: X.mul(2).mul(3).exp(), lambda: X.exp()) == ("mul.1", 0)
    assert odd(lambda: X.mul(2).mul(3), lambda: X.mul(2)) == ("mul.1", 0), "one of them is there too"


def test_an_op_comes_before_other_arguments(odd: Odd) -> None:
    assert odd(lambda: X.mul(2).exp(), lambda: X.mul(3).exp().sin()) == ("sin.0", 1)
    assert odd(lambda: X.mul(2).mul(5), lambda: X.mul(3).mul(5)) == ("mul.0", 0)
    assert odd(lambda: X.clamp(min=1), lambda: X.clamp(min=2)) == ("clamp.0", 0)
    assert odd(lambda: torch.stack([X, X]), lambda: torch.stack([X, X, X])) == ("stack.0", 0), "lists of tensors"


def test_what_computes_comes_before_views(odd: Odd) -> None:
    assert odd(lambda: X.view(2, 2).t().mul(2), lambda: X.view(2, 2).mul(3)) == ("mul.0", 0)
    assert odd(lambda: X.view(2, 2).t().mul(2), lambda: X.view(2, 2).mul(2)) == ("t.0", 0)
    assert odd(lambda: X.view(2, 2).mul(2), lambda: X.view(2, 2).t().mul(2)) == ("t.0", 1)
    assert odd(lambda: X.view(2, 2).mul(2), lambda: X.view(4, 1).mul(2)) == ("view.0", 0)


def test_where_none_is_odd_it_is_the_first_that_is_given_something_else(odd: Odd) -> None:
    assert odd(lambda: X.exp().sin(), lambda: X.sin().exp()) == ("exp.0", 0)
    assert odd(lambda: X.cos() + Y.sub(X).exp(), lambda: X.cos() + X.sub(Y).exp()) == ("sub.0", 0)
    one, other = (lambda a, b: (a.exp() + b).tanh()), (lambda a, b: (a + b).exp().tanh())
    assert odd(lambda: one(X, Y), lambda: other(X, Y)) == ("exp.0", 0)
    assert odd(lambda: X.exp().sin(), lambda: X.exp().sin()) == ("sin.0", 0), "the last where nothing is"


def test_of_ops_that_are_more_it_is_the_one_whose_arguments_the_other_side_lacks(odd: Odd) -> None:
    assert odd(lambda: X.sin().mul(3), lambda: X.mul(2).sin().mul(3)) == ("mul.0", 1)
    assert odd(lambda: X.mul(2).sin().mul(3), lambda: X.sin().mul(3)) == ("mul.0", 0)


def test_where_the_target_has_no_calls_it_is_the_baselines(record: Callable[..., Any]) -> None:
    flow = DataFlow(record(lambda: X.view(2, 2).t()), "aten")
    cones = Cone((), (), ()), Cone((), tuple(map(Piece, flow.calls())), ())
    call, side = odd_call(cones, (flow, flow), Counterparts(read_data=True))
    assert (call.name, side) == ("Aten.t.0.forward", 1)
