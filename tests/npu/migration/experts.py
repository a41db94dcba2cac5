"""A mixture of experts, as it is written for an NPU and for the CPU: permutation, products by group, attention in BSH."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import VOCABULARY

WIDTH, HEADS, KV_HEADS, HIDDEN, EXPERTS, COPIES = 32, 4, 2, 24, 4, 2


class GroupedProduct(torch.autograd.Function):
    """Rows of each expert times its weight, on an NPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        (found,) = torch.ops.npu.npu_grouped_matmul([x], [weight], group_list=ends, group_type=0, split_item=3)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, ends = ctx.saved_tensors
        product = torch.ops.npu.npu_grouped_matmul
        (to_x,) = product([grad], [weight.mT.contiguous()], group_list=ends, group_type=0, split_item=3)
        (to_weight,) = product([x.t().contiguous()], [grad], group_list=ends, group_type=2, split_item=3)
        return to_x, to_weight, None


class Attention(nn.Module):
    """Fewer heads of key and value than of queries."""

    def __init__(self) -> None:
        super().__init__()
        narrow = WIDTH * KV_HEADS // HEADS
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, narrow), nn.Linear(WIDTH, narrow)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, scale = self.q(x), self.k(x), self.v(x), (WIDTH // HEADS) ** -0.5
        if x.device.type == "npu":
            future = torch.ones(2048, 2048, dtype=torch.bool, device=x.device).triu(1)
            attention = torch.ops.npu.npu_fusion_attention
            return attention(q, k, v, HEADS, "BSH", scale=scale, atten_mask=future, sparse_mode=2)[0]  # type: ignore[no-any-return]
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-1, -2) * scale).masked_fill(future, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * HIDDEN) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * HIDDEN**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        probs, chosen = self.gate(rows).softmax(-1).topk(COPIES)
        ends = F.one_hot(chosen.flatten(), EXPERTS).sum(0).cumsum(0)
        if x.device.type == "npu":
            npu = torch.ops.npu
            permuted, places = npu.npu_moe_token_permute(rows, chosen.int())
            made = npu.npu_swiglu(GroupedProduct.apply(permuted, self.up, ends))
            found = npu.npu_moe_token_unpermute(GroupedProduct.apply(made, self.down, ends), places, probs=probs)
            return found.view(x.shape)  # type: ignore[no-any-return]
        order = chosen.flatten().argsort(stable=True)
        one, other = self._products(rows[order // COPIES], self.up, ends).chunk(2, -1)
        made = self._products(F.silu(one) * other, self.down, ends)[order.argsort()].view(-1, COPIES, WIDTH)
        return (made * probs.unsqueeze(-1)).sum(1).view(x.shape)

    @staticmethod
    def _products(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        starts = [0, *ends.tolist()]
        return torch.cat([x[starts[i] : starts[i + 1]] @ weight[i] for i in range(EXPERTS)])


class Mixture(nn.Module):
    """One layer of attention and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention, self.experts = nn.Embedding(VOCABULARY, WIDTH), Attention(), Experts()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x)
        return self.head(x + self.experts(x))  # type: ignore[no-any-return]
