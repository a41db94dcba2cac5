"""What autograd's engine is asked, by names that say what it is."""

from __future__ import annotations

import torch

from aten_dump.capture.torch_internals.engine import (
    ACCUMULATE_GRAD,
    is_grad_enabled,
    queue_callback,
    running_node,
    top_saved_hooks,
)
from tests.torch_features import needs_saved_hooks_told


def test_the_running_node_is_known_inside_a_backward_only() -> None:
    x = torch.ones(1, requires_grad=True)
    y, found = x.exp(), []
    assert y.grad_fn is not None and running_node() is None
    y.grad_fn.register_prehook(lambda gradients: found.append(running_node()._sequence_nr()))
    x.register_hook(lambda gradient: found.append(is_grad_enabled()))
    y.backward()
    assert found == [y.grad_fn._sequence_nr(), False] and is_grad_enabled()


def test_the_number_of_nodes_that_accumulate_into_a_leaf() -> None:
    x = torch.ones(1, requires_grad=True)
    leaf = x.exp().grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert leaf._sequence_nr() == ACCUMULATE_GRAD


def test_a_callback_comes_when_the_last_node_has_run_and_may_queue_another() -> None:
    x, order = torch.ones(1, requires_grad=True), []

    def last() -> None:
        order.append("first callback")
        queue_callback(lambda: order.append("second callback"))

    def hook(gradient: torch.Tensor) -> None:
        order.append("node")
        queue_callback(last)

    y = x.exp()
    y.register_hook(hook)
    x.register_post_accumulate_grad_hook(lambda leaf: order.append("leaf"))
    y.backward()
    assert order == ["node", "leaf", "first callback", "second callback"]


@needs_saved_hooks_told
def test_the_innermost_saved_tensor_hooks_are_the_program_s() -> None:
    assert top_saved_hooks(False) is None
    pack, unpack = (lambda t: t), (lambda t: t)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        found = top_saved_hooks(False)
    assert found is not None and found[0] is pack and found[1] is unpack
