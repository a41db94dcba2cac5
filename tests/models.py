"""Small training programs that the tests run bare and dumped.

`build` makes one from a seed, `train` runs it, `Outcome` holds every bit that a dump must not change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 64
SEQUENCE = 12
BATCH = 2


class Block(nn.Module):
    """A residual block with BatchNorm and in-place ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """A hand-written ResNet: in-place ReLU, in-place residual add, max pooling."""

    def __init__(self, channels: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.layers = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.pool(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=VOCABULARY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=32, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=VOCABULARY,
        max_position_embeddings=32, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, attn_implementation="eager",
    )  # fmt: skip
    return BertForMaskedLM(config)


def _token_loss(model: nn.Module) -> Tensor:
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    return model(input_ids=tokens, labels=tokens).loss


def _image_loss(model: nn.Module) -> Tensor:
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    return F.cross_entropy(model(images), labels)


def _image_loss_channels_last(model: nn.Module) -> Tensor:
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    return F.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "gpt2": (_gpt2, _token_loss),
    "llama": (_llama, _token_loss),
    "bert": (_bert, _token_loss),
    "resnet": (ResNet, _image_loss),
    "resnet_channels_last": (lambda: ResNet().to(memory_format=torch.channels_last), _image_loss_channels_last),
}

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@dataclass
class Program:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module], Tensor]


@dataclass
class Outcome:
    """Everything a training run leaves, by name, as clones."""

    losses: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    torch_rng: Tensor | None = None
    python_rng: Any = None
    numpy_rng: Any = None

    def tensors(self) -> dict[str, Tensor]:
        named = {f"loss.{i}": loss for i, loss in enumerate(self.losses)}
        for kind in ("gradients", "parameters", "buffers", "optimizer"):
            named.update({f"{kind}.{name}": tensor for name, tensor in getattr(self, kind).items()})
        assert self.torch_rng is not None
        return named | {"torch_rng": self.torch_rng}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def build(name: str, optimizer: str = "sgd_momentum", seed: int = 0) -> Program:
    """Make a program; equal seeds make equal programs, and leave the generators equal."""
    seed_all(seed)
    make, loss = MODELS[name]
    model = make().train()
    return Program(model, OPTIMIZERS[optimizer](model.parameters()), loss)


def train_step(program: Program, micro_batches: int = 1) -> Tensor:
    """One step: forward and backward of each micro batch, then the optimizer."""
    program.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for _ in range(micro_batches):
        loss = program.loss(program.model)
        loss.backward()
        total = total + loss.detach()
    program.optimizer.step()
    return total


def run_steps(
    program: Program, steps: int, after_step: Callable[[], object] = lambda: None, micro_batches: int = 1
) -> list[Tensor]:
    """Run `steps` steps and return their losses."""
    losses = []
    for _ in range(steps):
        losses.append(train_step(program, micro_batches))
        after_step()
    return losses


def train(program: Program, steps: int, micro_batches: int = 1) -> Outcome:
    """Run `steps` steps and return what they left."""
    return outcome_of(program, run_steps(program, steps, micro_batches=micro_batches))


def outcome_of(program: Program, losses: list[Tensor]) -> Outcome:
    """Everything that `run_steps` left, with the generators as they are now."""
    outcome = Outcome(losses)
    outcome.torch_rng, outcome.python_rng, outcome.numpy_rng = (
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state(),
    )
    model = program.model
    outcome.gradients = {n: _keep(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    outcome.parameters = {n: _keep(p) for n, p in model.named_parameters()}
    outcome.buffers = {n: _keep(b) for n, b in model.named_buffers()}
    names = {id(p): n for n, p in model.named_parameters()}
    for parameter, state in program.optimizer.state.items():
        outcome.optimizer.update(
            {f"{names[id(parameter)]}.{k}": _keep(v) for k, v in state.items() if isinstance(v, Tensor)}
        )
    return outcome


def _keep(tensor: Tensor) -> Tensor:
    """A copy with the strides of the original, which are part of what must not change."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor.detach())


@contextmanager
def single_thread() -> Iterator[None]:
    """Run on one thread: the test processes share few cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
