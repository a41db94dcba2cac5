"""Runs of autograd nodes: calls of their own, and what they make known of the calls that made the nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._autograd import _get_sequence_nr
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig
from aten_dump.capture.autograd.graph_links import note_input_edges
from aten_dump.capture.autograd.node_runs import NodeRuns
from aten_dump.capture.naming.call_name import API, BACKWARD, MODULE, NODE, CallName
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.torch_internals.mode_stack import Modes
from aten_dump.store import records as r
from tests.capture.autograd.links import Cube
from tests.capture.calls.recorded_ops import Recorded
from tests.torch_features import needs_saved_tensors


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Asked(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Runs:
    """The node runs of a step, of nodes that a call `owner` made."""

    def __init__(self, **config: Any) -> None:
        self.recorded = Recorded(**config)
        self.reached: list[dict[int, int]] = []
        self.modes = Modes(Asked(), Passing())
        chosen = DumpConfig(path="unused", **{"data": "structure", **config})
        self.runs = NodeRuns(chosen, self.recorded.step, self.recorded.values, self.modes, self.reached.append)
        self.owner = OpenCall(self.recorded.step.next_id(), API, CallName("f", "Torch", "f"), None)
        self.owner.sequence_start = torch._C._autograd._get_sequence_nr()
        self.claimed = 1000

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        """Say that the owner made `tensor`."""
        self.claimed += 1
        self.recorded.thread.grad = torch.is_grad_enabled()  # as an op that begins has it set
        self.runs.tags.claims.claim(self.recorded.thread, self.claimed, _get_sequence_nr())
        self.owner.outputs = (r.TREE_VALUE, self.recorded.values.value_of(tensor, False))
        self.runs.links.track(self.owner, [((), tensor)], self.recorded.thread)
        return tensor

    def nodes(self) -> list[r.Call]:
        numbers = {op.id for op in self.recorded.sink.of(r.OP) if op.prefix == "Node"}
        return [call for call in self.recorded.ended() if call.op in numbers]


@pytest.fixture
def runs() -> Iterator[Runs]:
    one = Runs()
    yield one
    one.runs.close()
    one.recorded.values.clear()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def test_a_run_is_a_call_with_the_gradients_that_came_and_went(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp())
    with runs.modes.dispatch:
        y.sum().backward()
    exp, leaf = runs.nodes()
    assert (exp.phase, exp.forward, exp.sequence_nr) == (BACKWARD, 1001, y.grad_fn._sequence_nr())  # type: ignore[union-attr]
    assert len(exp.args) == 1 and exp.outputs[0] == r.TREE_TUPLE and exp.outputs[1] == leaf.args[0]
    assert leaf.sequence_nr is None and runs.reached == [{id(x): leaf.id}]


def test_the_call_that_made_the_nodes_has_a_backward_with_its_gradients(runs: Runs, x: torch.Tensor) -> None:
    runs.owner.args = ((r.TREE_VALUE, 1),)
    note_input_edges(runs.owner, [((0,), x)])
    y = runs.made(x.exp())
    with runs.modes.dispatch:
        y.sum().backward()
    exp, leaf = runs.nodes()
    (backward,) = [call for call in runs.recorded.ended() if call.forward == runs.owner.id]
    assert backward.args == exp.args and backward.outputs == (r.TREE_TUPLE, exp.outputs[1])
    assert exp.parent == backward.id and leaf.parent == 0


def test_a_second_pass_is_another_run(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp()).sum()
    with runs.modes.dispatch:
        y.backward(retain_graph=True)
        y.backward()
    assert [call.n for call in runs.nodes()] == [0, 0, 1, 1] and len(runs.reached) == 2


def test_a_node_s_run_is_let_go_of_when_the_next_node_of_its_thread_runs(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp().sin())
    with runs.modes.dispatch:
        y.backward(torch.ones(3))
    node, kept = y.grad_fn, []
    while node is not None:
        tag = runs.runs.tags.of(node)
        assert tag is not None
        kept.append(tag.call is not None)
        node = node.next_functions[0][0] if node.next_functions else None
    assert kept == [False, False, True], "sin, exp and the leaf"


def test_a_pass_on_a_thread_without_our_modes_is_not_recorded(runs: Runs, x: torch.Tensor) -> None:
    runs.made(x.exp()).sum().backward()
    assert runs.nodes() == [] and runs.reached == [] and x.grad is not None


def test_nothing_runs_after_the_step_and_no_hook_is_left(x: torch.Tensor) -> None:
    from torch.autograd.function import _HookMixin

    before = _HookMixin._register_hook
    runs = Runs()
    y = runs.made(x.exp())
    runs.runs.close()
    with runs.modes.dispatch:
        y.sum().backward()
    assert runs.nodes() == [] and _HookMixin._register_hook is before
    runs.recorded.values.clear()


def test_a_run_that_the_step_s_end_finds_under_way_has_a_backward_call(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp())

    def ends(gradient: torch.Tensor) -> None:
        runs.runs.close()

    x.register_hook(ends)
    with runs.modes.dispatch:
        y.sum().backward()
    assert [call.forward for call in runs.recorded.ended()].count(runs.owner.id) == 1
    assert runs.reached == [{}] and runs.recorded.told.aloud == []


def test_the_function_mode_sees_the_python_of_a_node_and_goes_again(runs: Runs, x: torch.Tensor) -> None:
    depths: list[int] = []
    around = torch._C._len_torch_function_stack()
    y = runs.made(Cube.apply(x))
    z = x.exp()
    runs.made(z)
    for tensor in (y, z):
        tensor.grad_fn.register_prehook(lambda gradients: depths.append(torch._C._len_torch_function_stack()))
    with runs.modes.dispatch:
        y.sum().backward()
    assert depths == [1] and torch._C._len_torch_function_stack() == around


@needs_saved_tensors
@pytest.mark.parametrize("function", [torch.exp, lambda x: x + 1.0], ids=["runs an op", "runs none"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_of_the_program_makes_a_node_run_python(runs: Runs, x: torch.Tensor, when: str, function: Any) -> None:
    """Its calls are seen, in the node's run; and what it replaces is recorded, as ours after the run comes last."""
    depths: list[int] = []
    around = torch._C._len_torch_function_stack()
    y = runs.made(function(x))
    assert y.grad_fn is not None

    def hook(sent: Any, got: Any = None) -> Any:
        depths.append(torch._C._len_torch_function_stack() - (around if x.is_cpu else 0))
        call = runs.recorded.step.here.state.stack[-1]  # of the device's thread, if it has one
        assert call.kind == NODE and call.name.op == type(y.grad_fn).__name__
        return (sent[0] * 2, *sent[1:])

    y.grad_fn.register_prehook(hook) if when == "before" else y.grad_fn.register_hook(hook)
    with runs.modes.dispatch:
        y.sum().backward()
    node, leaf = runs.nodes()
    assert depths == [1] and node.outputs[1] == leaf.args[0] and torch._C._len_torch_function_stack() == around


def test_the_optimizer_s_thread_that_is_ours_at_the_moment_is_left_alone(runs: Runs, x: torch.Tensor) -> None:
    threads = []

    def becomes_ours(gradient: torch.Tensor) -> None:
        threads.append(runs.recorded.step.here.state)  # an accelerator's backward has a thread of its own
        threads[0].own.depth = 1

    y = runs.made(x.exp())
    total = y.sum()
    total.register_hook(becomes_ours)
    with runs.modes.dispatch:
        total.backward()
    threads[0].own.depth = 0
    assert runs.nodes() == []


def test_a_node_of_a_module_is_in_it(runs: Runs, x: torch.Tensor) -> None:
    runs.owner.kind, runs.owner.fqn, runs.owner.module = MODULE, "fc", runs.recorded.step.interner.text("fc")
    y = runs.made(x.exp())
    with runs.modes.dispatch:
        y.sum().backward()
    assert [call.module for call in runs.nodes()] == [runs.owner.module] * 2


def test_a_failure_of_ours_goes_to_the_recorder_and_the_gradient_to_the_program(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp())
    runs.recorded.fail()
    with runs.modes.dispatch:
        y.sum().backward()
    assert {str(error) for error in runs.recorded.told.aloud} == {"no room"}
    assert x.grad is not None and torch.equal(x.grad, x.detach().exp())
    runs.recorded.step.emit = runs.recorded.sink.emit


@pytest.mark.filterwarnings("ignore:Using backward")
def test_nodes_made_in_a_run_belong_to_it(runs: Runs, x: torch.Tensor) -> None:
    y = runs.made(x.exp())
    with runs.modes.dispatch:
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    exp = runs.nodes()[0]
    tag = runs.runs.tags.of(gradient.grad_fn)
    assert tag is not None and tag.maker is not None and tag.maker.id == exp.id


@pytest.mark.parametrize(("io", "kept"), [("all", {0, 1}), ("input", {0}), ("output", {1})])
def test_the_data_of_gradients_is_kept_as_asked(x: torch.Tensor, io: str, kept: set[int]) -> None:
    z = x * 1.0  # made before the step: its node is nobody's
    runs = Runs(io=io, data="tensor")
    y = runs.made(z.exp())
    with runs.modes.dispatch:
        torch.autograd.grad(y, z, torch.full((3,), 2.0))
    (exp,) = runs.nodes()
    runs.recorded.values._keeper.flush()
    stored = {data.value for data in runs.recorded.sink.of(r.DATA)}
    assert {i for i, tree in enumerate((exp.args[0], exp.outputs[1])) if tree[1] in stored} == kept
    runs.runs.close()
    runs.recorded.values.clear()


def test_a_node_that_computes_otherwise_under_a_mode_runs_without_ours_where_that_is_the_only_one(
    runs: Runs, x: torch.Tensor
) -> None:
    depths: list[int] = []
    for others in (0, 1):
        y = runs.made(x.prod())
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda gradients: depths.append(torch._C._len_torch_dispatch_stack()))
        with contextlib.ExitStack() as stack:
            for _ in range(others):
                stack.enter_context(Passing())
            with runs.modes.dispatch:
                y.backward()
                depths.append(torch._C._len_torch_dispatch_stack())
    assert depths == [0, 1, 2, 2]
    assert runs.recorded.notes() == {"own_formula": 1}
