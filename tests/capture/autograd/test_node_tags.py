"""What is known of a node is in the node itself, and means nothing to another step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._C._autograd import _get_sequence_nr
from torch.utils.checkpoint import checkpoint

from aten_dump.capture.autograd.node_tags import KEY, NodeTag, NodeTags
from aten_dump.capture.naming.call_name import CallName
from aten_dump.capture.step.threads import Threads

EXP = CallName("ExpBackward0", "Node", "ExpBackward0")


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def tags(threads: Threads) -> NodeTags:
    return NodeTags(threads)


def node_of(tensor: torch.Tensor) -> Any:
    assert tensor.grad_fn is not None
    return tensor.grad_fn


def put(tags: NodeTags, node: Any, forward: int = 3) -> NodeTag:
    tag = NodeTag(tags, EXP, node._sequence_nr(), forward, None)
    node.metadata[KEY] = tag
    return tag


def test_a_tag_is_of_its_step_alone(threads: Threads, tags: NodeTags) -> None:
    node = node_of(torch.ones(1, requires_grad=True).exp())
    assert tags.of(node) is None
    tag = put(tags, node)
    assert tags.of(node) is tag and NodeTags(threads).of(node) is None


def test_the_forward_call_of_a_node_is_what_its_tag_says_else_who_claimed_its_number(
    threads: Threads, tags: NodeTags
) -> None:
    x = torch.ones(1, requires_grad=True)
    node = node_of(x.exp())
    threads.main.grad = torch.is_grad_enabled()  # as an op that begins has it set
    tags.claims.claim(threads.main, 8, _get_sequence_nr())
    assert tags.forward_of(node) == 8
    put(tags, node, 5)
    assert tags.forward_of(node) == 5
    assert tags.forward_of(node.next_functions[0][0]) == 0, "a leaf's node belongs to no call"
    assert NodeTags(Threads()).forward_of(node) == 0, "made before that step"


def in_backward(tags: NodeTags, tag: bool, question: Callable[[Any], bool], create_graph: bool = False) -> bool:
    """Ask in the backward of exp."""
    y = torch.ones(1, requires_grad=True).exp()
    node, found = node_of(y), []
    known = put(tags, node) if tag else None
    if known is not None:
        known.creates_graph = create_graph
    node.register_prehook(lambda gradients: found.append(question(node)))
    y.backward(create_graph=create_graph)
    return bool(found[0])


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_graph_made_in_a_pass_that_makes_none_is_forward_again(threads: Threads, tags: NodeTags) -> None:
    def with_gradient(node: Any) -> bool:
        with torch.enable_grad():
            return tags.recomputes(node, threads.main)

    assert in_backward(tags, True, with_gradient)
    assert not in_backward(tags, True, partial(tags.recomputes, thread=threads.main)), "the backward itself"
    assert not in_backward(tags, True, with_gradient, create_graph=True), "the pass is itself differentiated"
    assert not in_backward(tags, False, with_gradient), "of a node that nobody knows nothing tells"


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("create_graph", [True, False])
def test_torch_s_checkpoint_is_known_by_its_frame_where_the_pass_is_differentiated(
    threads: Threads, tags: NodeTags, create_graph: bool
) -> None:
    found: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        if node is not None:
            if tags.of(node) is None:
                put(tags, node).creates_graph = create_graph
            found.append(tags.recomputes(node, threads.main))
        return x.exp().sin()

    y = checkpoint(function, torch.ones(1, requires_grad=True), use_reentrant=False)
    y.backward(create_graph=create_graph)
    assert found == [True]
    asked = partial(tags.recomputes, thread=threads.main)
    assert not in_backward(tags, True, asked, create_graph=True), "a pass outside of any checkpoint"
