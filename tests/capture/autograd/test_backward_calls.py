"""The backward of a call: gradients that reach its outputs, sums of those that leave it by an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aten_dump import DumpConfig, DumpMode
from aten_dump.capture.autograd.backward_calls import BackwardCall, BackwardTask, GradientSums
from aten_dump.capture.autograd.graph_links import OUTPUT_BITS
from aten_dump.capture.naming.call_name import API, BACKWARD, MODULE, NODE, CallName
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.store import records as r
from tests.capture.calls.recorded_ops import Recorded

ADD = CallName("torch.add", "Torch", "add")
V = r.TREE_VALUE
X, Y = -1, (7 << OUTPUT_BITS) + 1  # edges


class Passed:
    """A backward pass in a step."""

    def __init__(self, computed: bool = True, **config: Any) -> None:
        self.recorded = Recorded(**config)
        self.sums = GradientSums(self.recorded.values, computed, True)
        self.task = BackwardTask(self.recorded.step, self.sums, self.recorded.thread)

    def owner(self, parent: OpenCall | None = None, kind: int = API, **fields: Any) -> OpenCall:
        """A forward call that has ended."""
        call = OpenCall(self.recorded.step.next_id(), kind, ADD, parent)
        for name, value in fields.items():
            setattr(call, name, value)
        return call

    def of(self, owner: OpenCall) -> BackwardCall:
        call = self.task.call_of(owner, self.recorded.thread)
        assert call is not None
        return call


# -- sums


def sent(call: BackwardCall, sums: GradientSums, *terms: torch.Tensor | None) -> None:
    for number, term in enumerate(terms):
        call.send(X, term, (V, 100 + number) if term is not None else None, sums)


def test_a_single_gradient_is_the_very_value_that_the_node_sent() -> None:
    passed = Passed()
    call = passed.of(passed.owner(input_edges={X: 1}))
    sent(call, passed.sums, torch.ones(2))
    assert call.sent == {X: (V, 100)}


def test_several_are_added_up_in_memory_of_the_recorder_s_own() -> None:
    passed = Passed(data="tensor")
    call = passed.of(passed.owner(input_edges={X: 3}))
    terms = [torch.full((2,), 1.0), torch.full((2,), 10.0), torch.full((2,), 100.0)]
    sent(call, passed.sums, terms[0], terms[1])
    assert call.sent == {}
    call.send(X, terms[2], None, passed.sums)
    passed.recorded.values._keeper.flush()
    assert call.sent == {X: (V, 1)}
    assert torch.frombuffer(bytearray(passed.recorded.sink.blobs[1]), dtype=torch.float32).tolist() == [111, 111]
    assert [term.tolist() for term in terms] == [[1, 1], [10, 10], [100, 100]]


def test_a_term_without_a_gradient_counts_and_adds_nothing() -> None:
    passed = Passed()
    call = passed.of(passed.owner(input_edges={X: 2, Y: 2}))
    sent(call, passed.sums, None, torch.ones(2))
    assert call.sent == {X: (V, 1)}
    for _ in range(2):
        call.send(Y, None, None, passed.sums)
    assert call.sent[Y] is None


def test_terms_that_never_came_are_left_out_of_the_sum_at_the_end() -> None:
    passed = Passed(data="tensor")
    call = passed.of(passed.owner(input_edges={X: 2, Y: 2}))
    sent(call, passed.sums, torch.full((2,), 5.0))
    call.send(Y, None, None, passed.sums)
    call.complete(passed.sums)
    passed.recorded.values._keeper.flush()
    assert call.sent == {X: (V, 1), Y: None}
    assert torch.frombuffer(bytearray(passed.recorded.sink.blobs[1]), dtype=torch.float32).tolist() == [5, 5]
    call.complete(passed.sums)
    assert call.sent == {X: (V, 1), Y: None}


def test_sums_that_are_not_computed_are_values_of_which_only_the_geometry_is_known() -> None:
    passed = Passed(computed=False)
    call = passed.of(passed.owner(input_edges={X: 3}))
    sent(call, passed.sums, None, torch.ones(2, 3), torch.ones(2, 3))
    assert call.sent == {X: (V, 1)}
    (value,) = passed.recorded.sink.of(r.VALUE)
    assert (value.shape, value.storage) == ([2, 3], 0)


@pytest.mark.parametrize("sparse_first", [True, False])
def test_a_sparse_and_a_dense_gradient_are_added_up_in_any_order(sparse_first: bool) -> None:
    passed = Passed(data="tensor")
    call = passed.of(passed.owner(input_edges={X: 2}))
    terms = [torch.eye(2).to_sparse(), torch.ones(2, 2)]
    sent(call, passed.sums, *(terms if sparse_first else terms[::-1]))
    passed.recorded.values._keeper.flush()
    assert call.sent == {X: (V, 1)}
    assert torch.frombuffer(bytearray(passed.recorded.sink.blobs[1]), dtype=torch.float32).tolist() == [2, 1, 1, 2]
    assert terms[1].tolist() == [[1, 1], [1, 1]]


def test_a_sum_that_torch_cannot_add_up_is_unknown_whatever_comes_after() -> None:
    passed = Passed()
    call = passed.of(passed.owner(input_edges={X: 4, Y: 3}))
    sent(call, passed.sums, torch.ones(2), torch.ones(3), torch.ones(2), torch.ones(2))
    assert call.sent == {X: (V, 1)}
    call.send(Y, torch.ones(2), None, passed.sums)
    call.send(Y, torch.ones(3), None, passed.sums)
    call.complete(passed.sums)
    assert call.sent == {X: (V, 1), Y: (V, 2)}
    assert [value.storage for value in passed.recorded.sink.of(r.VALUE)] == [0, 0]


def test_a_program_whose_weight_has_a_sparse_and_a_dense_gradient_runs(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def forward(self, weight: torch.Tensor, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, weight).sum() + F.embedding(rows, weight, sparse=True).sum()

    weight = torch.ones(5, 4, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        Tied()(weight, torch.tensor([0, 1, 1]), torch.ones(3, 4)).backward()
    assert weight.grad is not None and weight.grad.to_dense().sum() == 72


class Mine(torch.Tensor):
    pass


def test_tensors_of_other_classes_are_not_added_up() -> None:
    passed = Passed()
    call = passed.of(passed.owner(input_edges={X: 2}))
    sent(call, passed.sums, torch.ones(2).as_subclass(Mine), torch.ones(2).as_subclass(Mine))
    assert call.sent == {X: (V, 1)} and len(passed.recorded.sink.of(r.VALUE)) == 1


# -- arguments and results


@pytest.mark.parametrize(
    ("outputs", "received", "arguments"),
    [
        (None, {}, ([None], None)),
        ((V, 4), {(): (V, 9)}, ([(V, 9)], None)),
        ((V, 4), {}, ([None], None)),
        ((r.TREE_TUPLE, (V, 4), 3, (V, 5)), {(2,): (V, 9)}, ([None, None, (V, 9)], None)),
        ((r.TREE_LIST, (r.TREE_LIST, (V, 4))), {(0, 0): (V, 9)}, ([(r.TREE_LIST, (V, 9))], None)),
        ((r.TREE_DICT, "a", (V, 4), 1, (V, 5)), {(1,): (V, 9)}, ([], {"a": None, "1": (V, 9)})),
    ],
    ids=["none", "tensor", "no gradient", "tuple", "nested", "dict"],
)
def test_arguments_are_gradients_in_the_shape_of_the_outputs(outputs: Any, received: Any, arguments: Any) -> None:
    passed = Passed()
    call = passed.of(passed.owner(outputs=outputs))
    for path, gradient in received.items():
        call.receive(path, gradient)
    assert call.arguments() == arguments


def test_results_are_gradients_in_the_shape_of_the_inputs() -> None:
    passed = Passed()
    owner = passed.owner(
        args=[(V, 1), 2.5, (r.TREE_LIST, (V, 2), (V, 3)), (r.TREE_LIST, 1), (V, 1)],
        input_edges={X: 1, Y: 1},
        edge_paths=(X, (0,), Y, (2, 1), X, (4,)),
    )
    call = passed.of(owner)
    call.send(X, None, (V, 8), passed.sums)
    call.send(Y, None, (V, 9), passed.sums)
    assert call.results() == (r.TREE_TUPLE, (V, 8), None, (r.TREE_LIST, None, (V, 9)), None, (V, 8))


def test_results_are_keyed_only_where_a_keyword_has_a_gradient() -> None:
    passed = Passed()
    edges = {"input_edges": {X: 1, Y: 1}, "edge_paths": (X, (0,), Y, ("w",))}
    owner = passed.owner(args=[(V, 1)], kwargs={"w": (V, 2), "n": 3}, **edges)
    call = passed.of(owner)
    call.send(X, None, (V, 8), passed.sums)
    assert call.results() == (r.TREE_TUPLE, (V, 8))
    call.send(Y, None, (V, 9), passed.sums)
    assert call.results() == (r.TREE_DICT, 0, (V, 8), "w", (V, 9))


def test_a_call_whose_inputs_have_no_gradient_has_no_results() -> None:
    passed = Passed()
    assert passed.of(passed.owner(args=[(V, 1), "x"])).results() == (r.TREE_TUPLE, None, None)


# -- the pass


def test_backward_calls_are_nested_as_the_forward_was_and_last_as_long_as_what_is_in_them() -> None:
    passed = Passed()
    module = passed.owner(kind=MODULE)
    inner = passed.owner(module)
    call = passed.of(inner)
    outer = passed.of(module)
    assert (call.parent_id, outer.parent_id, outer.id < call.id) == (outer.id, 0, True)
    assert passed.of(inner) is call
    call.end_ns = outer.end_ns + 1000
    passed.task.finish()
    ended = {one.id: one for one in passed.recorded.ended()}
    assert list(ended) == [outer.id, call.id]
    assert ended[outer.id].start_ns + ended[outer.id].duration_ns == call.end_ns
    assert [(one.phase, one.forward) for one in ended.values()] == [(BACKWARD, module.id), (BACKWARD, inner.id)]


def test_nodes_and_nothing_have_no_backward_call() -> None:
    passed = Passed()
    assert passed.task.call_of(None, passed.recorded.thread) is None
    assert passed.task.call_of(passed.owner(kind=NODE), passed.recorded.thread) is None


def test_the_pass_is_under_the_call_that_began_it() -> None:
    passed = Passed()
    caller = passed.recorded.under(ADD)
    task = BackwardTask(passed.recorded.step, passed.sums, passed.recorded.thread)
    call = task.call_of(passed.owner(), passed.recorded.thread)
    assert call is not None and call.parent_id == caller.id


def test_each_pass_over_a_call_is_another_call_of_its_name() -> None:
    passed = Passed()
    owner = passed.owner()
    for _ in range(2):
        task = BackwardTask(passed.recorded.step, passed.sums, passed.recorded.thread)
        task.call_of(owner, passed.recorded.thread)
        task.finish()
        task.finish()
    assert [(call.n, call.repeat) for call in passed.recorded.ended()] == [(0, 0), (0, 1)]


def test_the_backward_of_a_call_that_is_left_out_is_counted_and_its_parent_stands_for_it() -> None:
    passed = Passed()
    module = passed.owner(kind=MODULE)
    left_out = passed.owner(module, recorded=False)
    call = passed.of(left_out)
    assert call.visible == passed.of(module).id
    passed.task.finish()
    assert [one.forward for one in passed.recorded.ended()] == [module.id]
    assert passed.recorded.notes() == {"selection": 1}
