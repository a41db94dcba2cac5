"""References of mixtures of experts, against what is written without any permutation, and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.references import experts

from .leaves import WIDE, gradients, leaf

TOKENS, EXPERTS, COPIES, SIZE = 6, 4, 2, 5


def routed() -> Tensor:
    """Return two experts of each token."""
    return torch.stack([torch.randperm(EXPERTS)[:COPIES] for _ in range(TOKENS)]).int()


def weighted(x: Tensor, probs: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Return what each token gets from its experts, token by token."""
    rows = [sum(probs[t, c] * (x[t] @ weights[int(indices[t, c])]) for c in range(COPIES)) for t in range(TOKENS)]
    return torch.stack(rows)  # type: ignore[arg-type]


def test_there_and_back() -> None:
    x, weights, indices = leaf(TOKENS, SIZE), leaf(EXPERTS, SIZE, SIZE), routed()
    probs = torch.rand(TOKENS, COPIES, dtype=WIDE, requires_grad=True)
    expected = weighted(x, probs, indices, weights)
    permuted, places = experts.permute(x.detach(), indices)
    assert places.dtype == torch.int32
    counts = indices.flatten().bincount(minlength=EXPERTS)
    for groups, kind in ((counts.cumsum(0), 0), (counts, 1), (counts.cumsum(0).tolist(), None)):
        (made,) = experts.grouped_matmul(
            [permuted], [weights.detach()], group_list=groups, group_list_type=kind, group_type=0, split_item=3
        )
        torch.testing.assert_close(experts.unpermute(made, places, probs.detach()), expected.detach())
    kept, again = experts.unpermute_and_kept(made, places, probs.detach())
    assert again is made and torch.equal(kept, experts.unpermute(made, places, probs.detach()))
    grad = torch.randn_like(expected)
    to_x, to_weights, to_probs = gradients(expected, grad, x, weights, probs)
    for found in (
        experts.unpermute_grad(made, grad, places, probs.detach()),
        experts.unpermute_grad_v2(grad, places, len(made), WIDE, probs.detach(), permuted_tokens=made),
    ):
        torch.testing.assert_close(found[1], to_probs)
    to_made = found[0]
    ends = counts.cumsum(0)
    (by_columns,) = experts.grouped_matmul([permuted.T], [to_made], group_list=ends, group_type=2)
    torch.testing.assert_close(by_columns, to_weights)
    (to_permuted,) = experts.grouped_matmul([to_made], [weights.detach().mT], group_list=ends, group_type=0)
    torch.testing.assert_close(experts.permute_grad_v2(to_permuted, places, TOKENS, WIDE, COPIES), to_x)
    torch.testing.assert_close(experts.permute_grad(x.detach(), to_permuted, indices, places), to_x)


def test_tokens_that_are_dropped_have_no_gradient() -> None:
    x, indices = leaf(4, 3), torch.tensor([1, 0, 1, 0])
    permuted, places = experts.permute(x.detach(), indices, 3)
    assert torch.equal(permuted, x.detach()[[1, 3, 0]])
    back = experts.unpermute(permuted, places)
    assert torch.equal(back[:2], x.detach()[:2]) and not back[2].any()
    grad = experts.permute_grad_v2(torch.ones_like(permuted), places, 4, WIDE, 1)
    assert grad[:, 0].tolist() == [1, 1, 0, 1]


def test_products_of_lists_and_biases() -> None:
    x, weights, biases = ([torch.randn(*shape, dtype=WIDE) for _ in range(2)] for shape in ((3, 4), (4, 5), (5,)))
    found = experts.grouped_matmul(x, weights, bias=biases)
    torch.testing.assert_close(
        found, [torch.nn.functional.linear(a, b.T, c) for a, b, c in zip(x, weights, biases, strict=True)]
    )
    (joined,) = experts.grouped_matmul([torch.cat(x)], weights, bias=biases, group_list=[3, 6])
    torch.testing.assert_close(joined, torch.cat(found))


def test_the_greatest_of_a_softmax() -> None:
    x = torch.randn(3, 5)
    done = torch.tensor([False, True, False])
    weights, chosen, copies = experts.gating_top_k_softmax(x, done, 2)
    expected, index = x.softmax(-1).topk(2)
    assert torch.equal(weights, expected) and chosen.dtype == torch.int32
    assert torch.equal(chosen[[0, 2]].long(), index[[0, 2]]) and chosen[1].tolist() == [5, 5]
    assert copies.tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(NotImplementedError, match="equal"):
        experts.gating_top_k_softmax(torch.tensor([[1.0, 3.0, 1.0]]), None, 2)


def test_routing_for_inference() -> None:
    x, bias, skip = torch.randn(3, 4), torch.randn(2, 4), torch.randn(3, 4)
    chosen, copies = torch.tensor([[1, 0], [0, 1], [1, 0]]), torch.tensor([[0, 3], [1, 4], [2, 5]])
    scales = torch.rand(3, 2)
    rows, places, ordered = experts.init_routing(x, copies, chosen, 3)
    assert ordered.tolist() == [0, 0, 0, 1, 1, 1]
    assert experts.compute_expert_tokens(ordered, 2).tolist() == [3, 6]
    found = experts.finalize_routing(rows, skip, None, bias, scales, places, chosen)
    expected = skip + sum(scales[:, c : c + 1] * (x + bias[chosen[:, c]]) for c in range(2))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (experts.permute, (torch.ones(2, 2), torch.tensor([0, 1]), None, True)),
        (experts.unpermute, (torch.ones(2, 2), torch.tensor([0, 1]), None, True)),
        (experts.unpermute_grad_v2, (torch.ones(2, 2), torch.tensor([0, 1]), 2, WIDE, None, True)),
        (experts.compute_expert_tokens, (torch.tensor([0, 1]), 1 << 40)),
        (experts.finalize_routing, (torch.ones(2, 2), None, None, None, None, torch.tensor([0, 1]), None, 1)),
    ],
)
def test_what_is_not_written_is_refused(call: Any, asked: Any) -> None:
    with pytest.raises(NotImplementedError):
        call(*asked)


def test_quantized_products_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="scale"):
        experts.grouped_matmul([torch.ones(2, 2)], [torch.ones(2, 2)], scale=[torch.ones(2)])


@pytest.mark.parametrize("kind", ["rows", "columns", "summed over", "batch"])
def test_products_of_groups_are_those_of_torch(kind: str) -> None:
    ends = torch.tensor([3, 3, 16], dtype=torch.int32)  # the second group has nothing
    shapes = {"rows": ((16, 8), (3, 8, 16)), "columns": ((3, 8, 16), (16, 16)), "summed over": ((8, 16), (16, 8))}
    one, other = (torch.randn(shape) for shape in shapes.get(kind, ((3, 8, 16), (3, 16, 8))))
    offs = None if kind == "batch" else ends
    narrow = [given.bfloat16() for given in (one, other)]
    found = experts.grouped_mm(*narrow, offs)
    wanted = torch._grouped_mm(*narrow, offs=offs)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    assert experts.grouped_mm(one.double(), other.double(), offs, out_dtype=torch.bfloat16).dtype == torch.float64


def test_rows_of_no_group_are_not_computed() -> None:
    with pytest.raises(NotImplementedError):
        experts.grouped_mm(torch.randn(9, 8), torch.randn(2, 8, 4), torch.tensor([3, 7], dtype=torch.int32))
