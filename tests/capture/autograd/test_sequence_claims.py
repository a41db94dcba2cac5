"""Each autograd node belongs to the op that it is the derivative of, also where autograd clones before an op writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._C._autograd import _get_sequence_nr

from aten_dump.capture.autograd.sequence_claims import SequenceClaims
from aten_dump.capture.step.threads import Threads, ThreadState
from tests.other_thread import in_thread
from tests.torch_features import needs_saved_hooks_shown

Record = Callable[..., Any]
Tensor = torch.Tensor


def _weight() -> Tensor:
    return torch.full((4,), 0.5, requires_grad=True)


IN_PLACE: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "HardswishBackward0": ("aten::hardswish_", lambda y: F.hardswish(y, inplace=True)),
    "SiluBackward0": ("aten::silu_", lambda y: F.silu(y, inplace=True)),
    "MishBackward0": ("aten::mish_", lambda y: F.mish(y, inplace=True)),
    "HardtanhBackward0": ("aten::hardtanh_", lambda y: F.relu6(y, inplace=True)),
    "MulBackward0": ("aten::mul_.Tensor", lambda y: y.mul_(_weight())),
    "DivBackward0": ("aten::div_.Tensor", lambda y: y.div_(_weight())),
    "PowBackward0": ("aten::pow_.Scalar", lambda y: y.pow_(2)),
    "ClampBackward1": ("aten::clamp_", lambda y: y.clamp_(0, 1)),
    "AbsBackward0": ("aten::abs_", lambda y: y.abs_()),
    "ScatterReduceBackward0": (
        "aten::scatter_reduce_.two",
        lambda y: y.scatter_reduce_(0, torch.tensor([0, 1, 2, 3]), _weight(), "prod"),
    ),
}


SAVED = ["nodes", pytest.param("hooks", marks=needs_saved_hooks_shown)]

# Without another input that has a gradient, the op makes no node where its own input has none.
CASES = [(node, True) for node in IN_PLACE] + [
    (node, False) for node in ("MulBackward0", "DivBackward0", "ScatterReduceBackward0")
]


@pytest.mark.parametrize("saved_tensors", SAVED)
@pytest.mark.parametrize(("node", "input_has_gradient"), CASES)
def test_an_op_that_overwrites_what_its_backward_needs_has_its_node(
    record: Record, node: str, input_has_gradient: bool, saved_tensors: str
) -> None:
    op, run = IN_PLACE[node]
    base = torch.linspace(-2.0, 2.0, 4, requires_grad=input_has_gradient)

    def step() -> None:
        y = run(base + 1.0)
        (y * 3.0).sum().backward()

    rank = record(step, saved_tensors=saved_tensors)
    names = [call for call in rank.calls if call.kind == "node" and call.name.split(".")[1] == node]
    owners = {call.forward.op for call in names if call.forward is not None and call.forward.op != "aten::mul.Tensor"}
    assert owners == {op}
    clones = [call for call in rank.calls if call.op == "aten::clone" and call.phase == "forward"]
    assert len(clones) == 1, "autograd's own"
    forward = next(call for call in rank.calls if call.op == op)
    assert forward.sequence_nr is not None and forward.sequence_nr != clones[0].sequence_nr
    assert {call.forward.op for call in rank.calls if call.kind == "node" and "Clone" in call.name} <= {"aten::clone"}


@pytest.mark.parametrize("saved_tensors", SAVED)
def test_an_op_on_lists_that_overwrites_what_its_backward_needs_has_its_nodes(
    record: Record, saved_tensors: str
) -> None:
    def step() -> None:
        lists = [_weight() + 1.0, _weight() + 2.0]
        torch._foreach_mul_(lists, [_weight(), _weight()])
        (lists[0] + lists[1]).sum().backward()

    rank = record(step, saved_tensors=saved_tensors)
    nodes = [call for call in rank.calls if call.kind == "node" and "MulBackward" in call.name]
    assert [call.forward.op for call in nodes] == ["aten::_foreach_mul_.List"] * 2


def test_in_place_ops_on_views_one_after_the_other(record: Record) -> None:
    base, weight = torch.ones(4, requires_grad=True), torch.full((4,), 2.0, requires_grad=True)

    def step() -> None:
        y = base * 1.5
        y[:2].mul_(weight[:2])
        y[2:].mul_(weight[2:])
        (y + 1).sum().backward()

    rank = record(step)
    writes = [call.id for call in rank.calls if call.op == "aten::mul_.Tensor"]
    slices = [call for call in rank.calls if call.kind == "node" and "CopySlices" in call.name]
    assert sorted(call.forward.id for call in slices) == writes


def test_an_in_place_op_without_a_node_takes_none(record: Record) -> None:
    base, count = torch.ones(4, requires_grad=True), torch.zeros(())

    def step() -> None:
        y = base * 2.0
        count.add_(1)
        y.sum().backward()

    rank = record(step)
    node = next(call for call in rank.calls if call.kind == "node" and "MulBackward0" in call.name)
    assert node.forward.op == "aten::mul.Tensor"
    assert next(call for call in rank.calls if call.op == "aten::add_.Tensor").sequence_nr is None


class Claims:
    """The claims of one thread; `op` is an op of call `number`, whose node torch has just made."""

    def __init__(self) -> None:
        self.threads = Threads()
        self.thread = self.threads.main
        self.claims = SequenceClaims(self.threads.all)

    def op(self, number: int) -> int | None:
        self.thread.grad = torch.is_grad_enabled()  # as an op that begins has it set
        found = self.claims.claim(self.thread, number, _get_sequence_nr())
        self.thread.last_call = number
        return found

    def clone(self, number: int, of_its_own: int | None) -> None:
        before = self.thread.last_call
        self.op(number)
        self.claims.cloned(self.thread, number, before, of_its_own)

    def ahead(self, number: int, args: tuple[Any, ...]) -> int | None:
        return self.claims.claim_ahead(self.thread, self.thread.last_call, number, args)


@pytest.fixture
def x() -> Tensor:
    return torch.ones(2, requires_grad=True)


def number_of(tensor: Tensor) -> int:
    assert tensor.grad_fn is not None
    return int(tensor.grad_fn._sequence_nr())


def test_an_op_claims_the_node_just_made_and_all_since_the_last(x: Tensor) -> None:
    claims = Claims()
    assert claims.op(1) is None
    first, second = x.exp(), x.sin()
    assert claims.op(2) == number_of(second)
    assert claims.op(3) is None, "it made none"
    made = [claims.claims.made_by(number_of(y), "ExpBackward0", claims.thread, 0) for y in (first, second)]
    assert made == [2, 2]


def test_a_node_of_before_the_step_is_nobody_s(x: Tensor) -> None:
    y = x.exp()
    claims = Claims()
    claims.op(1)
    assert claims.claims.made_by(number_of(y), "ExpBackward0", claims.thread, 0) is None
    assert claims.claims.made_by(number_of(y) + 1, "ExpBackward0", claims.thread, 0) is None, "there is none yet"


def test_a_node_that_no_op_has_claimed_yet_is_the_last_op_s(x: Tensor) -> None:
    claims = Claims()
    claims.op(7)
    y = x.exp()
    assert claims.claims.made_by(number_of(y), "ExpBackward0", claims.thread, 0) == 7
    assert claims.claims.made_by(number_of(y), "ExpBackward0", claims.thread, None) == 0, "in a backward nothing tells"


def test_copy_slices_is_made_after_its_op_and_belongs_to_the_call_before(x: Tensor) -> None:
    claims = Claims()
    claims.op(1)
    y = x.exp()
    claims.op(2)
    assert claims.claims.made_by(number_of(y), "CopySlices", claims.thread, 0) == 1
    assert claims.claims.made_by(number_of(y), "ExpBackward0", claims.thread, 0) == 2


def test_a_node_seen_without_gradient_is_made_around_the_first_op_there(x: Tensor) -> None:
    """In the forward of a custom function: its node is older than the ops in it, which make none."""
    claims = Claims()
    claims.op(1)
    y = x.exp()
    with torch.no_grad():
        assert claims.op(2) is None and claims.op(3) is None
    assert claims.claims.made_around(number_of(y), claims.thread) == 2
    assert claims.claims.made_around(number_of(y) + 1, claims.thread) == 0
    assert claims.claims.made_by(number_of(y), "CopySlices", claims.thread, 0) == 1
    z = x.exp()
    assert claims.op(4) == number_of(z)
    assert claims.claims.made_by(number_of(z), "ExpBackward0", claims.thread, 0) == 4


def test_of_numbers_that_two_threads_have_nothing_tells_whose_they_are(x: Tensor) -> None:
    claims = Claims()
    other: list[ThreadState] = []
    in_thread(lambda: other.append(claims.threads.here.state))
    claims.op(1)
    y = x.exp()
    claims.op(2)
    number = number_of(y)
    assert claims.claims.made_by(number, "ExpBackward0", claims.thread, None) == 2, "only one has it"
    other[0].made[number] = 9
    assert claims.claims.made_by(number, "ExpBackward0", claims.thread, None) == 0
    assert claims.claims.made_by(number, "ExpBackward0", claims.thread, number) == 2, "surely its own"
    assert claims.claims.made_by(number, "ExpBackward0", claims.thread, number + 1) == 0


def test_a_number_that_is_not_the_thread_s_is_the_one_other_s_that_has_it() -> None:
    claims = Claims()
    other: list[ThreadState] = []
    in_thread(lambda: other.append(claims.threads.here.state))
    far = claims.thread.claimed + 1000
    assert claims.claims.made_by(far, "ExpBackward0", claims.thread, None) is None
    other[0].made[far] = 9
    assert claims.claims.made_by(far, "ExpBackward0", claims.thread, None) == 9
    in_thread(lambda: other.append(claims.threads.here.state))
    other[1].made[far] = 10
    assert claims.claims.made_by(far, "ExpBackward0", claims.thread, None) == 0


def test_an_op_takes_the_node_that_was_made_ahead_of_the_clone_it_came_after(x: Tensor) -> None:
    claims = Claims()
    y = x.exp()
    claims.clone(5, None)  # it has claimed the node of the op that comes now
    plain, constant = torch.ones(2), torch.ones(2)
    assert claims.ahead(6, (plain, constant)) is None, "it makes no node"
    assert claims.ahead(6, (plain, x)) == number_of(y)
    assert claims.claims.made_by(number_of(y), "MulBackward0", claims.thread, 0) == 6


def test_of_a_clone_with_a_node_the_older_is_the_op_s(x: Tensor) -> None:
    claims = Claims()
    ahead, of_clone = x.exp(), x.clone()
    claims.clone(5, number_of(of_clone))
    assert claims.ahead(6, (x,)) == number_of(ahead) == number_of(of_clone) - 1
    assert claims.claims.made_by(number_of(of_clone), "CloneBackward0", claims.thread, 0) == 5


def test_an_op_on_a_list_takes_the_nodes_of_all_its_tensors(x: Tensor) -> None:
    claims = Claims()
    first, second, cloned = x.exp(), x.exp(), x.clone()
    claims.clone(5, number_of(cloned))
    cloned_too = x.clone()
    claims.clone(6, number_of(cloned_too))
    claims.clone(7, None)  # what a pack hook is given is detached, which makes no node
    assert claims.ahead(8, ([torch.ones(2), x], 2.0)) == number_of(second)
    numbers = [number_of(y) for y in (first, second, cloned, cloned_too)]
    assert [claims.claims.made_by(n, "MulBackward0", claims.thread, 0) for n in numbers] == [8, 8, 5, 6]


def test_nothing_is_taken_without_gradient_or_after_another_call(x: Tensor) -> None:
    claims = Claims()
    x.exp()
    claims.clone(5, None)
    with torch.no_grad():
        assert claims.ahead(6, (torch.ones(2), x)) is None
    claims.thread.last_call = 8
    assert claims.ahead(9, (torch.ones(2), x)) is None
    claims.clone(10, None)
    assert claims.ahead(11, (torch.ones(2), x)) is None, "that clone had nothing ahead of it"
