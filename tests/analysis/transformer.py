"""A 4-layer bf16 transformer with bugs that can be switched on, and another device that rounds otherwise.

`OtherDevice` stands below the recorder: it computes matrix products as chunks summed in float32, as another kernel would, and
may spoil one result of one op. Bugs of the program itself are options of `Options`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode

WIDTH, HEADS, LAYERS, LENGTH, BATCH, VOCABULARY = 32, 4, 4, 16, 4, 48
aten = torch.ops.aten


@dataclass(frozen=True)
class Options:
    layer: int = 2  # where the bug is
    scale: float = 1.0
    eps: float = 1e-5
    rope: int = 0  # the position of the first query
    rope_of_keys: int = 0  # honest where it is the same as that of the queries
    mask: int = 1
    drop_bias: bool = False
    zero_element: bool = False
    swap_rows: bool = False
    shuffle: bool = False
    reduction: str = "mean"
    backward: float = 1.0
    weight: float = 1.0
    chunked: bool = False  # honest: the MLP's product in chunks, in Python
    manual_attention: bool = True  # honest: composed attention instead of the fused op
    fused_norm: bool = False  # honest: F.rms_norm instead of its parts


class Squared(torch.autograd.Function):
    """relu(x)**2 with a backward of its own, that may be wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return F.relu(x) ** 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        result = grad * 2 * F.relu(x)
        return result if ctx.factor == 1.0 else result * ctx.factor, None


class Norm(nn.Module):
    def __init__(self, eps: float, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.eps, self.fused = eps, fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.rms_norm(x, (WIDTH,), self.weight, self.eps)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.options = options

    def rotate(self, x: Tensor, first: int) -> Tensor:
        half = x.shape[-1] // 2
        at = torch.arange(first, LENGTH + first).float()
        angle = at[:, None] / 100.0 ** (torch.arange(half).float() / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotate(q, self.options.rope), self.rotate(k, self.options.rope_of_keys)
        scale = self.options.scale / (WIDTH // HEADS) ** 0.5
        if self.options.manual_attention:
            mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=x.dtype).triu(self.options.mask)
            mixed = F.softmax(q @ k.transpose(-1, -2) * scale + mask, -1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Mlp(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        hidden = Squared.apply(self.up(x), self.options.backward)
        if self.options.drop_bias:
            return F.linear(hidden, self.down.weight)
        if self.options.chunked:
            parts = [
                h.float() @ w.float().t()
                for h, w in zip(hidden.chunk(4, -1), self.down.weight.chunk(4, -1), strict=True)
            ]
            total = parts[0] + parts[1] + parts[2] + parts[3]
            return (total + self.down.bias.float()).type_as(x)
        return self.down(hidden)


class Block(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(options.eps, options.fused_norm), Norm(options.eps, options.fused_norm)
        self.attention, self.mlp = Attention(options), Mlp(options)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out = self.mlp(self.norm2(x))
        if self.options.zero_element:
            keep = torch.ones_like(out)
            keep[1, 2, 3] = 0
            out = out * keep
        if self.options.swap_rows:
            out = out[:, [1, 0, *range(2, LENGTH)]]
        return x + out


class Model(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        honest = Options(
            chunked=options.chunked, manual_attention=options.manual_attention, fused_norm=options.fused_norm
        )
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList(Block(options if n == options.layer else honest) for n in range(LAYERS))
        self.norm, self.head = Norm(1e-5, options.fused_norm), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.options = options

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.h:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction=self.options.reduction)


def build(options: Options, dtype: torch.dtype = torch.bfloat16) -> tuple[Model, Tensor, Tensor]:
    torch.manual_seed(0)
    model = Model(options).to(dtype)
    with torch.no_grad():
        model.h[options.layer].mlp.up.weight.mul_(options.weight)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    labels = tokens.roll(-1, 1)
    if options.shuffle:
        tokens = tokens[[1, 0, 3, 2]]
    return model, tokens, labels


class OtherDevice(TorchDispatchMode):
    """Sums matrix products in chunks, in float32; `spoil` maps (op, number of the call) to what is done to its result."""

    def __init__(self, spoil: dict[tuple[str, int], Callable[[Tensor], Tensor]] | None = None, chunks: int = 4) -> None:
        super().__init__()
        self.spoil, self.chunks = spoil or {}, chunks
        self.count: dict[str, int] = {}

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        pairs = zip(a.float().chunk(self.chunks, -1), b.float().chunk(self.chunks, -2), strict=True)
        total = torch.zeros((), dtype=torch.float32)
        for one, other in pairs:
            total = total + one @ other
        return total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (aten.mm.default, aten.bmm.default):
            out = self.product(*args).to(args[0].dtype)
        elif func is aten.addmm.default:
            out = (self.product(args[1], args[2]) + args[0].float()).to(args[1].dtype)
        else:
            out = func(*args, **kwargs)
        name = func.name()
        number = self.count[name] = self.count.get(name, -1) + 1
        change = self.spoil.get((name, number))
        return out if change is None else change(out)


def record(
    path: Path,
    options: Options = Options(),
    device: OtherDevice | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    data: str = "full",
    steps: int = 1,
    **config: Any,
) -> Path:
    model, tokens, labels = build(options, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        with DumpMode(DumpConfig(path=str(path), data=data, **config), model=model) as dump:  # type: ignore[arg-type]
            for _ in range(steps):
                model(tokens, labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                dump.step()

    if device is None:
        run()
    else:
        with device:
            run()
    return path
