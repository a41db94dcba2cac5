"""The steps that cost is measured on. Each function returns one that runs a step, and its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

_BIG_OPS = 8
_OPS_PER_ROUND = 11  # aten ops of one round of the chain and of its backward
_UNITS = {"MB": 10**6, "GB": 10**9}


class Workload(NamedTuple):
    """One step of a program, and the model in it."""

    step: Callable[[], None]
    model: nn.Module


def gpt2() -> Workload:
    """GPT-2 from config: d=256, 4 layers, 4 heads, vocabulary 8192, f32, batch i64[4, 128]; forward, backward, SGD."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    config = GPT2Config(
        n_embd=256, n_layer=4, n_head=4, vocab_size=8192, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    return language_model(model, 8192, 128)


def llama() -> Workload:
    """Llama from config: d=512, 8 layers, 8 heads, vocabulary 8192, f32, batch i64[2, 128]; forward, backward, SGD."""
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8, vocab_size=8192
    )
    return language_model(LlamaForCausalLM(config), 8192, 128, batch=2)


def language_model(
    model: nn.Module, vocabulary: int, length: int, batch: int = 4, optimizer: torch.optim.Optimizer | None = None
) -> Workload:
    """Return steps of a model of transformers on i64[batch, length]: forward, backward, and SGD if nothing else."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, vocabulary, (batch, length))

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(step, model)


class _Chain(nn.Module):
    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.rounds):
            x = ((x * 1.01 + 0.01).tanh()).sigmoid()
        return x


def chain(rounds: int = 16) -> Workload:
    """4 tiny chained elementwise ops per round on f32[16] and their backward: overhead and nothing else."""
    model = _Chain(rounds)
    x = torch.randn(16, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()
        x.grad = None

    return Workload(step, model)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norm1(self.conv1(x)))
        return torch.relu_(self.norm2(self.conv2(y)) + x)


def resnet() -> Workload:
    """8 residual blocks, 64 channels, BatchNorm, in-place ReLU; f32[8, 3, 32, 32]; forward, backward, SGD."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *[_Block(64) for _ in range(8)], nn.AdaptiveAvgPool2d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(8, 3, 32, 32)

    def step() -> None:
        model(images).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(step, model)


class _Fresh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(_BIG_OPS):
            x = x + 1
        return x


def big_tensors(nbytes: int) -> Workload:
    """A few ops whose input and results are `nbytes` together, without backward; at most three of them at a time."""
    model = _Fresh()
    x = torch.ones(nbytes // (_BIG_OPS + 1) // 4)

    @torch.no_grad()
    def step() -> None:
        model(x)

    return Workload(step, model)


WORKLOADS = {"gpt2": gpt2, "chain": chain, "resnet": resnet, "llama": llama}


def workload_named(name: str) -> Workload:
    """Make a workload: a name of `WORKLOADS`, or a point of a growth curve, "ops-10000" or "bytes-100MB".

    Raises:
        ValueError: there is none of that name.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]()
    kind, _, size = name.partition("-")
    if kind == "ops" and size.isdecimal():
        return chain(max(1, int(size) // _OPS_PER_ROUND))
    if kind == "bytes":
        return big_tensors(parse_bytes(size))
    raise ValueError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}, ops-N and bytes-NMB")


def parse_bytes(text: str) -> int:
    """Return the bytes that "10MB" or "4GB" stand for."""
    unit = _UNITS.get(text[-2:])
    if unit is None or not text[:-2].isdecimal():
        raise ValueError(f"{text!r} is not a size; write one like 10MB or 4GB")
    return int(text[:-2]) * unit
