"""Tiny transformers of every kind, from their configs: training step and, where they have one, generate()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import MODELS, Program, seed_all

VOCABULARY = 64


@dataclass(frozen=True)
class Animal:
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], Tensor]
    prompt: Callable[[], dict[str, Tensor]] | None = None  # of generate()


def _tokens(length: int = 8) -> Tensor:
    return torch.randint(2, VOCABULARY, (2, length))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=2, vocab_size=VOCABULARY, decoder_start_token_id=0, dropout_rate=0.1,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY,
        max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4, num_labels=5,
        hidden_dropout_prob=0.1,
    )  # fmt: skip
    return ViTForImageClassification(config)


def _whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=16, max_target_positions=32, vocab_size=VOCABULARY, dropout=0.1,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


def _seq_to_seq_loss(model: nn.Module) -> Tensor:
    return model(input_ids=_tokens(), labels=_tokens(6)).loss


def _causal_loss(model: nn.Module) -> Tensor:
    tokens = _tokens(12)
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def _image_loss(model: nn.Module) -> Tensor:
    return model(pixel_values=torch.randn(2, 3, 16, 16), labels=torch.randint(0, 5, (2,))).loss


def _speech_loss(model: nn.Module) -> Tensor:
    return model(input_features=torch.randn(2, 8, 32), labels=_tokens(6)).loss


def _text_prompt() -> dict[str, Tensor]:
    tokens = _tokens(5)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _speech_prompt() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 32)}


ZOO: dict[str, Animal] = {
    "gpt2": Animal(*MODELS["gpt2"], _text_prompt),
    "llama": Animal(*MODELS["llama"], _text_prompt),
    "bert": Animal(*MODELS["bert"]),
    "t5": Animal(_t5, _seq_to_seq_loss, _text_prompt),
    "mixtral": Animal(_mixtral, _causal_loss, _text_prompt),
    "vit": Animal(_vit, _image_loss),
    "whisper": Animal(_whisper, _speech_loss, _speech_prompt),
}


def build(name: str, optimizer: str = "adamw_foreach", seed: int = 0) -> Program:
    """Make a program; equal seeds make equal programs, and leave the generators equal."""
    from tests.models import OPTIMIZERS

    seed_all(seed)
    animal = ZOO[name]
    model = animal.make().train()
    return Program(model, OPTIMIZERS[optimizer](model.parameters()), animal.loss)


def generate(name: str, model: nn.Module, **how: Any) -> Tensor:
    """Generate some tokens; `how` goes to ``generate``."""
    prompt = ZOO[name].prompt
    assert prompt is not None
    seed_all(1)
    model.eval()
    with torch.no_grad():
        tokens = model.generate(**prompt(), max_new_tokens=6, pad_token_id=0, **how)  # type: ignore[operator]
    assert isinstance(tokens, Tensor)
    return tokens
