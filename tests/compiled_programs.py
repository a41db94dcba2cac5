"""Small models to compile, each with a loss; no number in them is random, so that eager and compiled code agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aten_dump import DumpConfig, DumpMode
from aten_dump.config import DataKind
from tests import models, zoo
from tests.compiled_families import AttentiveUNet, Crossing, GraphAttention, Recognizer, TimeMix


class UNet(nn.Module):
    """Two levels, with a `cat` of the skipped tensor and a bilinear upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(16, 3, 3, padding=1),
        )
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm(self.down(x)))
        m = F.interpolate(F.silu(self.mid(F.avg_pool2d(h, 2))), scale_factor=2, mode="bilinear")
        found: Tensor = self.up(torch.cat([h, m], 1))
        return found


class Mamba(nn.Module):
    """A selective scan, step by step, behind a causal convolution."""

    def __init__(self, width: int = 8, state: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.x, self.dt, self.out = nn.Linear(width, 2 * state), nn.Linear(width, width), nn.Linear(width, width)
        self.a = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(width, 1))
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        u = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c = self.x(u).chunk(2, -1)
        dt = F.softplus(self.dt(u))
        h = x.new_zeros(x.shape[0], x.shape[2], b.shape[-1])
        found = []
        for t in range(x.shape[1]):
            h = h * torch.exp(-dt[:, t, :, None] * self.a.exp()) + dt[:, t, :, None] * b[:, t, None] * u[:, t, :, None]
            found.append((h * c[:, t, None]).sum(-1))
        last: Tensor = self.out(self.norm(torch.stack(found, 1)))
        return last


class Graph(nn.Module):
    """Messages along edges, summed by `index_add`, normalized by degree."""

    edges: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]]))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        for layer in (self.one, self.other):
            h = layer(x)
            x = F.elu(torch.zeros_like(h).index_add(0, target, h[source]) / degree.to(h.dtype)[:, None] + h)
        return x


class DLRM(nn.Module):
    """Embedding bags and dense features, with products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom, self.top = nn.Linear(5, 8), nn.Linear(14, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        parts = [F.relu(self.bottom(dense)), *(table(sparse[:, n]).mean(1) for n, table in enumerate(self.tables))]
        all_parts = torch.stack(parts, 1)
        products = all_parts @ all_parts.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        found: Tensor = self.top(torch.cat([parts[0], products[:, rows, columns]], 1))
        return found.squeeze(-1)


class Experts(nn.Module):
    """A router of two among four, with a loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16) / 3), nn.Parameter(torch.randn(4, 16, 8) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x).softmax(-1)
        weight, chosen = scores.topk(2, -1)
        mask = torch.zeros_like(scores).scatter(-1, chosen, weight / weight.sum(-1, keepdim=True))
        every = torch.einsum("nei,eio->neo", F.gelu(torch.einsum("ni,eio->neo", x, self.up)), self.down)
        return (mask[..., None] * every).sum(1), (scores.mean(0) * (mask > 0).to(x.dtype).mean(0)).sum() * 4


class Speech(nn.Module):
    """Convolutions over time, then a layer of attention with relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 16, 3, padding=1), nn.Conv1d(16, 16, 3, stride=2, padding=1)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 10)
        self.bias = nn.Parameter(torch.zeros(2, 15))
        self.glu = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.second(F.gelu(self.first(x)))).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(h)).chunk(3, -1))
        place = torch.arange(h.shape[1])
        bias = self.bias[:, place[:, None] - place[None] + h.shape[1] - 1]
        h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)[None]).transpose(1, 2).flatten(2)
        found: Tensor = self.out(h + F.glu(self.glu(h), -1))
        return found.log_softmax(-1)


class Diffusion(nn.Module):
    """A block of a diffusion transformer: the time scales and shifts what is normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.time = (
            nn.Conv2d(3, 16, 2, stride=2),
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 96)),
        )
        self.qkv, self.proj, self.out = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 12)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate="tanh"), nn.Linear(32, 16))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rate = torch.exp(-torch.arange(4) * 0.7)
        wave = torch.cat([(t[:, None] * rate).sin(), (t[:, None] * rate).cos()], 1).to(x.dtype)
        a, b, c, d, e, f = self.time(wave)[:, None].chunk(6, -1)
        h = self.patch(x).flatten(2).transpose(1, 2)
        q, k, v = (
            part.unflatten(-1, (2, 8)).transpose(1, 2)
            for part in self.qkv(F.layer_norm(h, (16,)) * (1 + a) + b).chunk(3, -1)
        )
        h = h + c * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = h + d * self.mlp(F.layer_norm(h, (16,)) * (1 + e) + f)
        return F.pixel_shuffle(self.out(h).transpose(1, 2).unflatten(2, (4, 4)), 2)


class Block(nn.Module):
    """What a `Stack` is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor, is_broken: bool = False) -> Tensor:
        h = self.up(self.norm(x))
        if is_broken:
            torch._dynamo.graph_break()
        found: Tensor = self.down(F.gelu(h))
        return found


class Attentive(nn.Module):
    """A block of a decoder: causal attention and a gated layer behind one norm, divided by the size of the batch."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor, is_broken: bool = False) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        h = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        if is_broken:
            torch._dynamo.graph_break()
        normed = self.norm(h)
        found: Tensor = h + self.down(F.silu(self.gate(normed)) * self.up(normed)) / x.shape[0]
        return found


class Stack(nn.Module):
    """Two blocks one behind the other, that can be compiled, parted and checkpointed each for itself."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.form = "whole"
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        is_broken = "breaks" in self.form
        for block in self.blocks:
            if "checkpoint" in self.form:
                x = x + checkpoint(block, x, is_broken, use_reentrant=False)
            else:
                x = x + block(x, is_broken)
        return x * x.shape[0]


class Decoder(nn.Module):
    """A stack of attentive blocks between an embedding and the same embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(50, 32), Stack(Attentive)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.stack(self.embed(tokens)) @ self.embed.weight.T
        return found


Loss = Callable[[nn.Module, torch.dtype, int], Tensor]


def _mean_square(model: nn.Module, *given: Tensor) -> Tensor:
    found = model(*given)
    extra = 0.0
    if isinstance(found, tuple):
        found, extra = found
    target = torch.linspace(-1, 1, found.numel()).reshape(found.shape).to(found.dtype)
    total: Tensor = (found - target).square().mean() + extra
    return total


def _floats(*shape: int) -> Callable[[torch.dtype, int], Tensor]:
    return lambda dtype, rows: torch.randn(rows, *shape).to(dtype)


def _square(*inputs: Callable[[torch.dtype, int], Tensor]) -> Loss:
    return lambda model, dtype, rows: _mean_square(model, *(make(dtype, rows) for make in inputs))


def _tokens(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    tokens = torch.randint(0, models.VOCABULARY, (rows, models.SEQUENCE))
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def _next_tokens(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    tokens = torch.randint(0, 50, (rows, 9))
    return F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def _clicks(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    chances = model(torch.rand(rows, 4).to(dtype), torch.randint(0, 15, (rows, 3)))
    return F.binary_cross_entropy_with_logits(chances, (torch.arange(rows) % 2).to(dtype))


def _transcribed(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    found = model(torch.randn(rows, 9, 7).to(dtype)).float().transpose(0, 1)
    lengths = torch.full((rows,), 9), torch.full((rows,), 3)
    return F.ctc_loss(found, torch.randint(1, 6, (rows, 3)), *lengths)


def _of_zoo(name: str) -> Loss:
    return lambda model, dtype, rows: zoo.ZOO[name].loss(model)


def _patches(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    found: Tensor = model(pixel_values=torch.randn(rows, 3, 16, 16).to(dtype), labels=torch.arange(rows) % 5).loss
    return found


def _image(model: nn.Module, dtype: torch.dtype, rows: int) -> Tensor:
    return F.cross_entropy(model(torch.randn(rows, 3, 16, 16).to(dtype)), torch.arange(rows) % 5)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "gpt2": (models.MODELS["gpt2"][0], _tokens),
    "llama": (models.MODELS["llama"][0], _tokens),
    "resnet": (models.ResNet, _image),
    "vit": (zoo.ZOO["vit"].make, _patches),
    "t5": (zoo.ZOO["t5"].make, _of_zoo("t5")),
    "unet": (UNet, _square(_floats(3, 8, 8))),
    "mamba": (Mamba, _square(_floats(6, 8))),
    "gnn": (Graph, _square(lambda dtype, rows: torch.randn(6, 8).to(dtype))),
    "dlrm": (DLRM, _square(_floats(5), lambda _, rows: torch.randint(0, 20, (rows, 3, 4)))),
    "moe": (Experts, _square(_floats(8))),
    "speech": (Speech, _square(_floats(6, 16))),
    "stack": (Stack, _square(_floats(12))),
    "decoder": (Decoder, _next_tokens),
    "time mix": (TimeMix, _square(_floats(5, 12))),
    "crossing": (Crossing, _clicks),
    "graph attention": (GraphAttention, _square(lambda dtype, rows: torch.randn(6, 8).to(dtype))),
    "attentive unet": (AttentiveUNet, _square(_floats(2, 8, 8), _floats(3, 5))),
    "recognizer": (Recognizer, _transcribed),
    "diffusion": (Diffusion, _square(_floats(3, 4 * 2, 2 * 4), lambda _, rows: torch.linspace(0, 9, rows))),
}


@dataclass(frozen=True)
class How:
    """How a program is run.

    Attributes:
        compiled: by inductor, and not as written.
        dtype: of the weights and the data.
        autocast: to bfloat16, around the forward.
        optimizer: `adamw`, `sgd`, or `compiled` for AdamW whose step is compiled too.
        rows: of the batch, step by step.
        options: of torch.compile.
        form: `whole`, or one or more words, of which all but the last are for models with a `Stack`: `regional` (each
            block compiled for itself), `breaks` (of the graph, within a block), `checkpoint` (of activations), `autograd`
            (the backward compiled too).
    """

    compiled: bool = True
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    optimizer: str = "adamw"
    rows: tuple[int, ...] = (4, 4)
    options: tuple[tuple[str, Any], ...] = ()
    form: str = "whole"


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.__dict__["dropout"] = 0.0
    return model


def run(name: str, how: How, path: Path | None = None, data: DataKind = "tensor") -> list[Tensor]:
    """Train a program for some steps, recorded to `path` if that is given, and return all that it left."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, loss_of = PROGRAMS[name]
    model = _without_dropout(make()).to(how.dtype)
    forward: Any = model
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.form = how.form
        if how.compiled and "regional" in how.form:
            [block.compile(**dict(how.options)) for block in stack.blocks]
    if how.compiled and "regional" not in how.form:
        forward = torch.compile(model, **dict(how.options))
    backward_too: Any = nullcontext()
    if how.compiled and "autograd" in how.form:
        backward_too = torch._dynamo.compiled_autograd._enable(torch.compile)
    make_optimizer: Any = torch.optim.SGD if how.optimizer == "sgd" else torch.optim.AdamW
    optimizer = make_optimizer(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step) if how.compiled and how.optimizer == "compiled" else optimizer.step
    kept: list[Tensor] = []
    dump: Any = nullcontext()
    if path is not None:
        dump = DumpMode(DumpConfig(path=str(path), data=data, compile="kernels"), model=model)
    with backward_too, dump:
        for number, rows in enumerate(how.rows):
            torch.manual_seed(number + 1)
            with torch.autocast("cpu", torch.bfloat16, enabled=how.autocast):
                loss = loss_of(forward, how.dtype, rows)
            loss.backward()
            kept += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
            step()
            optimizer.zero_grad()
            if path is not None:
                dump.step()
    return [*kept, *(p.detach().clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]
