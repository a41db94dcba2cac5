"""Gradients of leaves that one side makes within the step: means to another end, or cut off on the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aten_dump import compare

X = torch.linspace(-2, 2, 48).view(4, 12)


class Net(nn.Module):
    """A body and a head; between them the graph may be cut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, 3)


def whole(net: Net) -> None:
    net.head(net.body(X).tanh()).square().mean().backward()


def cut(net: Net, factor: float = 1.0) -> None:
    hidden = net.body(X).tanh()
    leaf = hidden.detach().requires_grad_()
    net.head(leaf).square().mean().backward()
    assert leaf.grad is not None
    hidden.backward(leaf.grad * factor)


def dropped(net: Net) -> None:
    """Forget to go on with the gradient."""
    net.head(net.body(X).tanh().detach().requires_grad_()).square().mean().backward()


def recomputed(net: Net) -> None:
    out = checkpoint(lambda x: net.head(net.body(x).tanh()), (X * 1).requires_grad_(), use_reentrant=True)
    out.square().mean().backward()


def recorded(record: Callable[..., Any], program: Callable[[Net], None]) -> Any:
    net = Net()
    return record(lambda: program(net), model=net)


@pytest.mark.parametrize("program", [cut, recomputed])
def test_a_leaf_that_one_side_makes_on_its_way_is_no_end(program: Callable[[Net], None], record: Any) -> None:
    pair = recorded(record, program), recorded(record, whole)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("program", [dropped, lambda net: cut(net, 1.001)])
def test_a_gradient_that_does_not_go_on_as_it_was_is_found(program: Callable[[Net], None], record: Any) -> None:
    pair = recorded(record, program), recorded(record, whole)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == 1 and found.cause is not None, found.answer()


def asked(detached: bool, factor: float = 1.0) -> Callable[[Net], None]:
    """Ask for the gradient of what the step made itself, which nothing in the step reads."""

    def program(net: Net) -> None:
        given = (X * 2).requires_grad_()
        net.head(net.body((given.detach() if detached else given) * factor).tanh()).square().mean().backward()

    return program


@pytest.mark.parametrize("other", [asked(detached=True), asked(detached=False, factor=1.001)])
def test_the_gradient_of_such_a_leaf_that_both_sides_have_or_ought_to_is_one(
    other: Callable[[Net], None], record: Any
) -> None:
    pair = recorded(record, asked(detached=False)), recorded(record, other)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == 1 and found.cause is not None, found.answer()


def penalized(*, by_vmap: bool = False, graph: bool = True, most: float = 1.0) -> Callable[[Net], None]:
    """Return a program whose loss counts the slopes of the network, and that goes on with what it learned."""

    def program(net: Net) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def one(x: torch.Tensor) -> torch.Tensor:
            return net.head(net.body(x).tanh()).sum()

        x = (X * 1).requires_grad_()
        slopes = (
            torch.func.vmap(torch.func.grad(one))(X)
            if by_vmap
            else torch.autograd.grad(one(x), x, create_graph=graph)[0]
        )
        (net.body(X).square().mean() + (slopes.norm(dim=1) - most).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        whole(net)

    return program


@pytest.mark.parametrize("most", [1.0, 1.1])
def test_a_loss_that_is_asked_for_slopes_to_compute_with_is_no_end(most: float, record: Any) -> None:
    pair = recorded(record, penalized(by_vmap=True, most=most)), recorded(record, penalized())
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == int(most != 1), found.answer()
        assert found.cause is None or found.cause.row.place.op in ("aten::sub.Tensor", "aten::rsub.Scalar")


def test_slopes_that_were_asked_for_without_their_graph_are_named_though_a_later_loss_differs(record: Any) -> None:
    found = compare(recorded(record, penalized(graph=False)), recorded(record, penalized()))
    assert found.exit_code == 1 and found.cause is not None and found.cause.kind == "gradient", found.answer()
    assert found.cause.row.place.op == "aten::linalg_vector_norm" and "no gradient flows" in found.cause.text
