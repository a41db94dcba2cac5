"""Programs that no threshold was tuned on: one training step each, with everything a bug may touch within reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 80


@dataclass
class Run:
    """A program about to run; a bug or a variant changes some of it."""

    model: nn.Module
    batch: dict[str, Tensor]
    loss: Callable[[Run], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3, "foreach": True})
    scale: float = 1.0  # of the loss
    unscale: bool = True
    clip: float | None = None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    threads: int = 1

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        with self.context():
            loss = self.loss(self)
        (loss * self.scale if self.scale != 1.0 else loss).backward()
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if self.scale != 1.0 and self.unscale:
            torch._foreach_mul_([p.grad for p in parameters], 1.0 / self.scale)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        optimizer.step()
        optimizer.zero_grad()


# -- a Llama-like decoder ------------------------------------------------------------------------------------------------


class Gated(torch.autograd.Function):
    """silu(gate) * up, with a backward of its own; `wrong` says how that is wrong."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, wrong: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.wrong = wrong
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        to_gate = grad * up * (s * (1 + gate * (1 - s)))
        if ctx.wrong == "x1.05":
            to_gate = to_gate * 1.05
        elif ctx.wrong == "x1.01":
            to_gate = to_gate * 1.01
        elif ctx.wrong == "sign":
            to_gate = -to_gate
        elif ctx.wrong == "formula":
            to_gate = grad * up * (s * (1 + gate * s))
        elif ctx.wrong == "swapped":
            return grad * (gate * s), to_gate, None
        return to_gate, grad * (gate * s), None


class RmsBackward(torch.autograd.Function):
    """RMS norm with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, wrong: str) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.wrong = wrong
        return (wide * rstd).type_as(x) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        if ctx.wrong == "missing sqrt":
            rstd = rstd * rstd
        normal = x.float() * rstd
        wide = grad.float() * weight.float()
        inner = (wide * normal).mean(-1, keepdim=True)
        dims = (0,) if ctx.wrong == "broadcast" else (0, 1)
        to_weight = (grad.float() * normal).sum(dims)
        if ctx.wrong == "broadcast":
            to_weight = to_weight[0]
        return (rstd * (wide - normal * inner)).type_as(x), to_weight.type_as(weight), None, None


class RmsNorm(nn.Module):
    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.eps, self.form, self.wrong = 1e-6, form, ""

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "fused":
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        if self.form == "function":
            return RmsBackward.apply(x, self.weight, self.eps, self.wrong)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, groups * self.size)
        self.v_proj = nn.Linear(width, groups * self.size)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.diagonal, self.dim, self.scale = 1, -1, 1 / math.sqrt(self.size)
        self.form = "eager"

    def rotate(self, x: Tensor) -> Tensor:
        half, length = x.shape[-1] // 2, x.shape[-2]
        frequency = 1.0 / 500.0 ** (torch.arange(half).float() / half)
        angle = torch.outer(torch.arange(length).float(), frequency)
        angle = torch.cat([angle, angle], -1)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        if self.form == "eager":
            mask = torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype).triu(self.diagonal)
            scores = torch.matmul(q, k.transpose(2, 3)) * self.scale + mask
            mixed = torch.matmul(F.softmax(scores, dim=self.dim, dtype=torch.float32).to(q.dtype), v)
        elif self.form == "math":
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width)
        self.wrong, self.form = "", "function"

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        inner = F.silu(gate) * up if self.form == "plain" else Gated.apply(gate, up, self.wrong)
        return self.down_proj(inner)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, form: str) -> None:
        super().__init__()
        self.input_norm, self.post_norm = RmsNorm(width, form), RmsNorm(width, form)
        self.attn, self.mlp = Attention(width, heads, groups), Mlp(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, layers: int, form: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner, form) for _ in range(layers))
        self.norm, self.head = RmsNorm(width, form), nn.Linear(width, VOCABULARY, bias=False)
        self.reduction = "mean"

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=self.reduction)


def llama(
    dtype: torch.dtype, *, seed: int = 7, width: int = 48, heads: int = 6, groups: int = 2, inner: int = 112, batch: int = 3,
    length: int = 22, layers: int = 8, form: str = "composite",
) -> Run:  # fmt: skip
    torch.manual_seed(seed)
    model = Llama(width, heads, groups, inner, layers, form).to(dtype)
    tokens = torch.randint(0, VOCABULARY, (batch, length))
    inputs = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
    settings = {"lr": 3e-3, "weight_decay": 2.0, "foreach": True, "eps": 1e-3 if dtype == torch.float16 else 1e-8}
    return Run(model, inputs, lambda run: run.model(**run.batch), settings=settings, clip=1.0)


# -- a residual network of bottlenecks with BatchNorm --------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.pool = nn.AvgPool2d(2)
        self.blocks = nn.Sequential(*(Bottleneck(24, 10) for _ in range(3)))
        self.head = nn.Linear(24, 7)
        self.smoothing = 0.1

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(pixels)))
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), labels, label_smoothing=self.smoothing)


def resnet(dtype: torch.dtype, *, seed: int = 11, autocast: bool = False, channels_last: bool = False) -> Run:
    torch.manual_seed(seed)
    model = ResNet()
    pixels, labels = torch.randn(6, 3, 20, 20), torch.randint(0, 7, (6,))
    if channels_last:
        model, pixels = model.to(memory_format=torch.channels_last), pixels.to(memory_format=torch.channels_last)
    if not autocast:
        model, pixels = model.to(dtype), pixels.to(dtype)
    run = Run(model, {"pixels": pixels, "labels": labels}, lambda run: run.model(**run.batch))
    run.optimizer, run.settings = (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3, "foreach": True},
    )
    if autocast:
        run.context = lambda: torch.autocast("cpu", dtype)
    return run


# -- models of transformers, from their configs --------------------------------------------------------------------------


def bert(dtype: torch.dtype, *, seed: int = 3, dropout: float = 0.1, attention: str = "eager") -> Run:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    config = BertConfig(
        hidden_size=40, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=40, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation=attention,
    )  # fmt: skip
    tokens = torch.randint(1, VOCABULARY, (5, 17))
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    labels = torch.where(torch.rand(5, 17) < 0.3, tokens, -100)
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return Run(BertForMaskedLM(config).train().to(dtype), batch, lambda run: run.model(**run.batch).loss)


def vit(dtype: torch.dtype, *, seed: int = 5, attention: str = "eager") -> Run:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=3, image_size=24, patch_size=6,
        num_labels=9, hidden_dropout_prob=0.0, attn_implementation=attention,
    )  # fmt: skip
    model = ViTForImageClassification(config).train().to(dtype)
    batch = {"pixel_values": torch.randn(4, 3, 24, 24).to(dtype), "labels": torch.randint(0, 9, (4,))}
    run = Run(model, batch, lambda run: run.model(**run.batch).loss)
    if dtype == torch.float16:
        run.scale = 512.0
        run.settings = {"lr": 1e-3, "foreach": True, "eps": 1e-4}
    return run


def t5(dtype: torch.dtype, *, seed: int = 13) -> Run:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = T5Config(
        d_model=40, d_kv=10, d_ff=72, num_layers=3, num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", use_cache=False,
    )  # fmt: skip
    batch = {"input_ids": torch.randint(2, VOCABULARY, (3, 19)), "labels": torch.randint(2, VOCABULARY, (3, 9))}
    model = T5ForConditionalGeneration(config).train().to(dtype)
    return Run(model, batch, lambda run: run.model(**run.batch).loss)


def mixtral(dtype: torch.dtype, *, seed: int = 17) -> Run:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    config = MixtralConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY,
        max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(2, VOCABULARY, (2, 14))
    model = MixtralForCausalLM(config).train().to(dtype)
    return Run(model, {"input_ids": tokens, "labels": tokens}, lambda run: run.model(**run.batch).loss)


def gpt2(dtype: torch.dtype, *, seed: int = 23, attention: str = "sdpa") -> Run:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        n_embd=48, n_layer=4, n_head=4, n_positions=40, vocab_size=VOCABULARY, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    tokens = torch.randint(0, VOCABULARY, (4, 26))
    model = GPT2LMHeadModel(config).train().to(dtype)
    return Run(model, {"input_ids": tokens, "labels": tokens}, lambda run: run.model(**run.batch).loss)


PROGRAMS: dict[str, Callable[[], Run]] = {
    "llama bf16": lambda: llama(torch.bfloat16),
    "llama bf16 functions": lambda: llama(torch.bfloat16, seed=8, width=64, heads=4, groups=4, inner=96, batch=2, length=33, form="function"),
    "llama fp32": lambda: llama(torch.float32, seed=9, width=40, heads=4, groups=2, inner=72, layers=4, length=15, form="function"),
    "llama fp16": lambda: llama(torch.float16, seed=10, width=32, heads=4, groups=1, inner=64, layers=4, batch=4, length=18, form="fused"),
    "bert fp32": lambda: bert(torch.float32),
    "bert bf16": lambda: bert(torch.bfloat16, seed=4, dropout=0.0),
    "vit fp16": lambda: vit(torch.float16),
    "vit bf16": lambda: vit(torch.bfloat16, seed=6),
    "resnet fp32": lambda: resnet(torch.float32),
    "resnet autocast": lambda: resnet(torch.bfloat16, autocast=True, channels_last=True),
    "resnet bf16": lambda: resnet(torch.bfloat16, seed=12),
    "t5 fp32": lambda: t5(torch.float32),
    "t5 bf16": lambda: t5(torch.bfloat16, seed=14),
    "mixtral fp32": lambda: mixtral(torch.float32),
    "mixtral bf16": lambda: mixtral(torch.bfloat16, seed=18),
    "gpt2 fp32": lambda: gpt2(torch.float32),
    "gpt2 bf16": lambda: gpt2(torch.bfloat16, seed=24),
}  # fmt: skip
