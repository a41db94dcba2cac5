"""Models of transformers, from their configs: a decoder with QK norm, a state space, encoder-decoders for text and speech."""

from __future__ import annotations

import torch
from torch import nn

from ..training import STEPS, Program, Training

WORDS = 61


def _named_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


def _tokens(count: int, length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (count, length))


def qwen3(dtype: torch.dtype = torch.float32, attention: str = "eager") -> Training:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        vocab_size=WORDS, max_position_embeddings=64, use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).train().to(dtype)
    batches = [{"input_ids": (t := _tokens(3, 15)), "labels": t.clone()} for _ in range(STEPS)]
    return Training(model, batches, _named_loss, clip=1.0)


def mamba() -> Training:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(2)
    config = MambaConfig(
        hidden_size=24, state_size=6, num_hidden_layers=2, vocab_size=WORDS, expand=2, time_step_rank=5, use_cache=False, use_mambapy=False
    )  # fmt: skip
    model = MambaForCausalLM(config).train()
    batches = [{"input_ids": (t := _tokens(2, 9)), "labels": t.clone()} for _ in range(STEPS)]
    return Training(model, batches, _named_loss)


def bart() -> Training:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(3)
    config = BartConfig(
        d_model=36, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=60,
        decoder_ffn_dim=60, vocab_size=WORDS, max_position_embeddings=40, dropout=0.1, use_cache=False, attn_implementation="eager",
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).train()
    batches = []
    for _ in range(STEPS):
        mask = torch.ones(3, 13, dtype=torch.long)
        mask[1, 9:] = 0
        batches.append({"input_ids": _tokens(3, 13), "attention_mask": mask, "labels": _tokens(3, 8)})
    return Training(model, batches, _named_loss)


def whisper(attention: str = "eager") -> Training:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(4)
    config = WhisperConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=10, max_source_positions=12, max_target_positions=20, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False, attn_implementation=attention, dropout=0.0,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).train()
    batches = [{"input_features": torch.randn(2, 10, 24), "labels": _tokens(2, 7)} for _ in range(STEPS)]
    return Training(model, batches, _named_loss)


PROGRAMS = [
    Program("qwen3", "decoder", qwen3),
    Program("qwen3 bf16", "decoder", lambda: qwen3(torch.bfloat16, "sdpa")),
    Program("mamba", "state space", mamba),
    Program("bart", "encoder-decoder", bart),
    Program("whisper", "speech", whisper),
]
