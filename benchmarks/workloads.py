"""The training steps that overhead is measured on. Each returns a function that runs one step, and its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn


class Workload(NamedTuple):
    """One step of a program, and the model in it."""

    step: Callable[[], None]
    model: nn.Module


def gpt2() -> Workload:
    """GPT-2 from config: d=256, 4 layers, 4 heads, vocabulary 8192, f32, batch i64[4, 128]; forward, backward, SGD."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    config = GPT2Config(
        n_embd=256, n_layer=4, n_head=4, vocab_size=8192, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    return _language_model(model, 8192, 128)


def llama() -> Workload:
    """Llama from config: d=512, 8 layers, 8 heads, vocabulary 8192, f32, batch i64[2, 128]; forward, backward, SGD."""
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8, vocab_size=8192
    )
    return _language_model(LlamaForCausalLM(config), 8192, 128, batch=2)


def _language_model(model: nn.Module, vocabulary: int, length: int, batch: int = 4) -> Workload:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, vocabulary, (batch, length))

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(step, model)


class _Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(16):
            x = ((x * 1.01 + 0.01).tanh()).sigmoid()
        return x


def chain() -> Workload:
    """64 tiny chained elementwise ops on f32[16] and their backward: overhead and nothing else."""
    model = _Chain()
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


WORKLOADS = {"gpt2": gpt2, "chain": chain, "resnet": resnet, "llama": llama}
