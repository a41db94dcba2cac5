"""Weights that a port keeps in another layout are the same weights: permuted, transposed and merged, over two steps."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

SIZE, HEADS, KEYS, WORDS, VOCABULARY, LAYERS = 24, 4, 2, 7, 19, 2
EACH = SIZE // HEADS
IDS = torch.arange(2 * WORDS).mul(5).remainder(VOCABULARY).view(2, WORDS)


def angles() -> Tensor:
    return torch.outer(torch.arange(WORDS).float(), 10.0 ** -torch.arange(EACH // 2).div(EACH))


def by_halves(x: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    table = torch.cat((angles(), angles()), -1)
    return x * table.cos() + torch.cat((-two, one), -1) * table.sin()


def by_pairs(x: Tensor) -> Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles().cos(), angles().sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def paired(weight: Tensor, heads: int) -> Tensor:
    """Permute the rows of each head: halves become pairs."""
    return weight.unflatten(0, (heads, 2, EACH // 2)).transpose(1, 2).flatten(0, 2)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(HEADS // KEYS, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE, bias=False)
        self.k, self.v = nn.Linear(SIZE, KEYS * EACH), nn.Linear(SIZE, KEYS * EACH)
        self.gate, self.up, self.down = (nn.Linear(*io, bias=False) for io in ((SIZE, 40), (SIZE, 40), (40, SIZE)))

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(x, (SIZE,))
        q, k, v = (one(h).unflatten(-1, (-1, EACH)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.o(attended(by_halves(q), by_halves(k), v))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Port(nn.Module):
    """Queries, keys and values in one weight [in, out], rows of heads in pairs; gate and up in one."""

    def __init__(self, old: Block, permute_keys: bool) -> None:
        super().__init__()
        keys = paired if permute_keys else lambda weight, heads: weight
        q, k, v = paired(old.q.weight, HEADS), keys(old.k.weight, KEYS), old.v.weight
        biases = paired(old.q.bias[:, None], HEADS)[:, 0], keys(old.k.bias[:, None], KEYS)[:, 0], old.v.bias
        self.qkv = nn.Parameter(torch.cat((q, k, v)).t().detach().contiguous())
        self.shift = nn.Parameter(torch.cat(biases).detach())
        self.out, self.down = (nn.Parameter(one.weight.t().detach().contiguous()) for one in (old.o, old.down))
        self.wide = nn.Parameter(torch.cat((old.gate.weight, old.up.weight)).t().detach().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(x, (SIZE,)) @ self.qkv + self.shift
        sizes = [SIZE, KEYS * EACH, KEYS * EACH]
        q, k, v = (one.unflatten(-1, (-1, EACH)).transpose(1, 2) for one in h.split(sizes, -1))
        x = x + attended(by_pairs(q), by_pairs(k), v) @ self.out
        gate, up = (x @ self.wide).chunk(2, -1)
        return x + (F.silu(gate) * up) @ self.down


class Model(nn.Module):
    def __init__(self, *, port: bool, permute_keys: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(VOCABULARY, SIZE)
        blocks = [Block() for _ in range(LAYERS)]
        permuted = [permute_keys or number != LAYERS - 1 for number in range(LAYERS)]
        self.blocks = nn.Sequential(
            *(Port(one, is_permuted) if port else one for one, is_permuted in zip(blocks, permuted, strict=True))
        )

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.blocks(self.words(ids)), self.words.weight)


def trained(path: Path, model: Model) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        for _ in range(2):
            F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def compared(folder: Path, target: Model, baseline: Model) -> Comparison:
    return compare(trained(folder / "target", target), trained(folder / "baseline", baseline))


def test_a_port_with_merged_permuted_and_transposed_weights_agrees_in_training(tmp_path: Path) -> None:
    found = compared(tmp_path, Model(port=True), Model(port=False))
    assert found.exit_code == 0, found.answer()
    assert [evidence.findings for evidence in found.ranks] == [(), ()]


def test_so_does_the_original_against_the_port(tmp_path: Path) -> None:
    found = compared(tmp_path, Model(port=False), Model(port=True))
    assert found.exit_code == 0, found.answer()


def test_keys_that_were_not_permuted_are_named_where_they_are_turned(tmp_path: Path) -> None:
    found = compared(tmp_path, Model(port=True, permute_keys=False), Model(port=False))
    assert found.exit_code == 1
    assert found.cause is not None
    assert found.cause.row.place.module == f"blocks.{LAYERS - 1}", found.answer()
