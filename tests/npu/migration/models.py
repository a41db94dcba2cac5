"""GPT-2, a Llama and a ResNet, each for the CPU and, with the package's fused ops, for an NPU.

`trained` runs three steps under a DumpMode from the same weights and batches on either device, as a user's script does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode
from tests.models import MODELS, VOCABULARY, ResNet

STEPS = 3
FRACTAL_NZ = 29
WIDTH, HEADS, LAYERS = 32, 4, 1


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "npu":
            return torch.ops.npu.npu_rms_norm(x, self.weight, 1e-5)[0]  # type: ignore[no-any-return]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if x.device.type == "npu":
        return torch.ops.npu.npu_rotary_mul(x, cos, sin)  # type: ignore[no-any-return]
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin


class Attention(nn.Module):
    def __init__(self, in_private_format: bool = False) -> None:
        super().__init__()
        self.in_private_format = in_private_format
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size, length, _ = x.shape
        q, k, v = (p.view(size, length, HEADS, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        if self.in_private_format and x.device.type == "npu":
            cos, sin = (torch.ops.npu.npu_format_cast(table, FRACTAL_NZ) for table in (cos, sin))
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        scale = (WIDTH // HEADS) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        if x.device.type == "npu":
            y = torch.ops.npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=scale, atten_mask=future)[0]
        else:
            y = (q @ k.transpose(-1, -2) * scale).masked_fill(future, -torch.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(size, length, WIDTH))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if x.device.type == "npu":
            return self.down(torch.ops.npu.npu_swiglu(x))  # type: ignore[no-any-return]
        gate, up = x.chunk(2, -1)
        return self.down(F.silu(gate) * up)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, in_private_format: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(WIDTH), Attention(in_private_format)
        self.norm2, self.mlp = RMSNorm(WIDTH), SwiGLU()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(self, in_private_format: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(in_private_format) for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        size = WIDTH // HEADS
        frequency = 10_000.0 ** (-torch.arange(0, size, 2, device=tokens.device) / size)
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), frequency).repeat(1, 2)
        cos, sin = (table.view(1, 1, *angle.shape) for table in (angle.cos(), angle.sin()))
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _tokens(step: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(step), device="cpu")


def _loss_of_llama(model: nn.Module, step: int, device: str) -> Tensor:
    tokens = _tokens(step).to(device)
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _loss_of_gpt2(model: nn.Module, step: int, device: str) -> Tensor:
    tokens = _tokens(step).to(device)
    return model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]


def _loss_of_resnet(model: nn.Module, step: int, device: str) -> Tensor:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step), device="cpu")
    labels = torch.randint(0, 5, (4,), generator=torch.Generator().manual_seed(step), device="cpu")
    return F.cross_entropy(model(images.to(device)), labels.to(device))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, int, str], Tensor]]] = {
    "gpt2": (MODELS["gpt2"][0], _loss_of_gpt2),
    "llama": (Llama, _loss_of_llama),
    "llama in FRACTAL_NZ": (lambda: Llama(in_private_format=True), _loss_of_llama),
    "resnet": (ResNet, _loss_of_resnet),
}


def trained(name: str, device: str, path: Path, **config: Any) -> Path:
    """Train a model for three steps on a device, and return the dump."""
    make, loss_of = PROGRAMS[name]
    if device == "npu":
        torch.get_device_module("npu").config.allow_internal_format = name.endswith("FRACTAL_NZ")
    torch.manual_seed(0)
    model = make().train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    with DumpMode(DumpConfig(path=path, **{"data": "full", **config}), model=model) as dump:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, device).backward()
            optimizer.step()
            dump.step()
    return path
