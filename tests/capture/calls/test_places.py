"""Where an op belongs: under the innermost open call, in the phase that autograd and the optimizer tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.autograd.node_tags import KEY, NodeTag, NodeTags
from aten_dump.capture.calls.ops import Place, Places
from aten_dump.capture.naming.call_name import (
    API,
    BACKWARD,
    FORWARD,
    MODULE,
    NODE,
    OPTIMIZER,
    RECOMPUTE,
    CallName,
)
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.step.step import Step
from aten_dump.capture.torch_internals.engine import current_graph_task_id
from tests.capture.step.steps import new_step

ADD, EXP = CallName("torch.add", "Torch", "add"), CallName("ExpBackward0", "Node", "ExpBackward0")


class Asked:
    """A step, and where an op that runs now belongs."""

    def __init__(self, stacks: bool = False) -> None:
        self.step: Step = new_step()[0]
        self.thread = self.step.threads.main
        self.tags = NodeTags(self.step.threads)
        self.places = Places(self.step, self.tags, stacks)

    def open(self, kind: int = API, phase: int = FORWARD) -> OpenCall:
        call = OpenCall(self.step.next_id(), kind, ADD, self.step.top(self.thread))
        call.phase = phase
        self.thread.stack.append(call)
        return call

    def __call__(self, sequence_nr: int | None = None) -> Place:
        place = Place()
        place.sequence_nr = sequence_nr
        place.node = torch._C._current_autograd_node()
        place.tag = None if place.node is None else self.tags.of(place.node)
        self.thread.grad = torch.is_grad_enabled()  # as an op that begins has it set
        self.places.find(place, self.thread)
        return place

    def in_backward(self, tagged: bool = True, grad: bool = False, running: bool = True, **fields: Any) -> Place:
        """Where an op belongs that runs in the backward of exp."""
        y = torch.ones(2, requires_grad=True).exp()
        assert y.grad_fn is not None
        found: list[Place] = []
        if tagged:
            tag: Any = NodeTag(self.tags, EXP, y.grad_fn._sequence_nr(), 17, None)
            tag.call, tag.thread = fields.pop("call", None), self.thread if running else None
            pass_of_call = fields.pop("graph_task", None)
            for name, value in fields.items():
                setattr(tag, name, value)
            y.grad_fn.metadata[KEY] = tag
        self.number = y.grad_fn._sequence_nr()

        def before(gradients: Any) -> None:
            if tagged and tag.call is not None:
                tag.call.graph_task = current_graph_task_id() if pass_of_call is None else pass_of_call
            with torch.set_grad_enabled(grad):
                found.append(self())

        y.grad_fn.register_prehook(before)
        y.sum().backward()
        return found[0]


def fields(place: Place) -> tuple[Any, ...]:
    return (place.parent, place.phase, place.sequence_nr, place.stack, place.module, place.forward, place.fqn)


def test_an_op_on_its_own_is_forward_and_has_no_parent() -> None:
    assert fields(Asked()(7)) == (0, FORWARD, 7, 0, 0, 0, "")


def test_an_op_is_under_the_innermost_call_in_its_module() -> None:
    asked = Asked()
    module = asked.open(MODULE)
    module.fqn, module.module = "fc", 4
    call = asked.open()
    assert fields(asked()) == (call.id, FORWARD, None, 0, 4, 0, "fc")
    call.visible = module.id  # it is left out
    assert asked().parent == module.id


@pytest.mark.parametrize(("depth", "grad", "phase"), [(1, False, OPTIMIZER), (1, True, FORWARD), (0, False, FORWARD)])
def test_the_optimizer_s_ops_are_those_without_gradient_in_its_step(depth: int, grad: bool, phase: int) -> None:
    """With gradient it is the closure that runs: the program's forward."""
    asked = Asked()
    asked.thread.optimizer_depth = depth
    with torch.set_grad_enabled(grad):
        assert asked().phase == phase


@pytest.mark.parametrize(("kind", "own"), [(MODULE, True), (API, False), (NODE, False)])
def test_an_op_under_a_python_level_call_takes_that_call_s_stack(kind: int, own: bool) -> None:
    asked = Asked(stacks=True)
    assert asked().stack > 0
    call = asked.open(kind)
    call.stack = 1000
    with torch.enable_grad():
        y = torch.ones(1, requires_grad=True).exp()
    found: list[int] = []
    y.register_hook(lambda gradient: found.append(asked().stack))  # a node is open only while one runs
    y.sum().backward()
    assert (found[0] != 1000) is own


def test_without_stacks_there_are_none() -> None:
    assert Asked()().stack == 0


def test_an_op_of_a_node_belongs_to_the_node_s_forward_call() -> None:
    asked = Asked()
    node = asked.open(NODE)
    node.sequence_nr, node.fqn, node.module = 99, "fc", 4
    place = asked.in_backward(call=node)
    assert fields(place) == (node.id, BACKWARD, 99, 0, 4, 17, "fc")


def test_a_call_inside_a_node_is_the_parent_while_the_node_runs() -> None:
    asked = Asked()
    node = asked.open(NODE)
    inner = asked.open()
    assert asked.in_backward(call=node).parent == inner.id


def test_after_the_node_s_run_gradients_that_are_added_up_are_the_node_s() -> None:
    asked = Asked()
    outer = asked.open()
    node = OpenCall(asked.step.next_id(), NODE, EXP, outer)
    assert asked.in_backward(call=node, running=False).parent == node.id
    assert asked.in_backward(call=node, running=True).parent == outer.id


def test_on_a_thread_without_open_calls_the_node_is_the_parent() -> None:
    asked = Asked()
    node = OpenCall(5, NODE, EXP, None)
    assert asked.in_backward(call=node).parent == 5


def test_a_node_s_call_of_an_earlier_pass_is_nobody_s_parent() -> None:
    asked = Asked()
    outer = asked.open()
    node = OpenCall(asked.step.next_id(), NODE, EXP, None)
    place = asked.in_backward(call=node, running=False, graph_task=-2)
    assert (place.parent, place.sequence_nr, place.forward) == (outer.id, asked.number, 17)


def test_a_node_without_a_call_of_its_own_gives_number_and_forward_call() -> None:
    asked = Asked()
    place = asked.in_backward()
    assert (place.parent, place.phase, place.sequence_nr, place.forward) == (0, BACKWARD, asked.number, 17)
    asked = Asked()
    place = asked.in_backward(tagged=False)
    assert (place.phase, place.sequence_nr) == (BACKWARD, asked.number)


def test_what_makes_a_graph_in_a_pass_that_makes_none_is_forward_again() -> None:
    asked = Asked()
    node = asked.open(NODE)
    place = asked.in_backward(call=node, grad=True)
    assert (place.parent, place.phase, place.sequence_nr, place.forward) == (node.id, RECOMPUTE, None, 0)
    assert Asked().in_backward(call=node, grad=True, creates_graph=True).phase == BACKWARD


def test_what_runs_under_a_call_of_a_recompute_is_recompute_with_or_without_gradient() -> None:
    asked = Asked()
    call = asked.open(API, RECOMPUTE)
    assert asked.in_backward().phase == RECOMPUTE
    assert asked.in_backward().parent == call.id


def test_an_optimizer_in_a_hook_of_the_pass_is_the_optimizer() -> None:
    asked = Asked()
    y = torch.ones(2, requires_grad=True).exp()
    found: list[int] = []

    def hook(gradient: torch.Tensor) -> None:
        asked.thread.optimizer_depth = 1
        found.append(asked().phase)  # its step began in no pass: this one is run by its closure
        asked.thread.optimizer_pass = torch._C._current_graph_task_id()
        with torch.no_grad():
            found.append(asked().phase)

    y.register_hook(hook)
    y.sum().backward()
    assert found == [BACKWARD, OPTIMIZER]
