"""A training step of tiny models of transformers, a family a line, from their configs alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import Program

_WORDS = 32
_TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": _WORDS,
}
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": _WORDS, "n_positions": 16}
_GROUPED = {**_TEXT, "num_key_value_heads": 1, "pad_token_id": 0, "head_dim": 8}
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "output_router_logits": True,
}
_PAIR = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": _WORDS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
_T5 = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": _WORDS,
    "decoder_start_token_id": 0,
}
_IMAGE = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 16, "patch_size": 4,
    "num_labels": 3,
}  # fmt: skip
_SPEECH = {
    **_TEXT, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "apply_spec_augment": False,
}  # fmt: skip


def _text() -> dict[str, Tensor]:
    tokens = torch.randint(3, _WORDS, (2, 8))
    return {"input_ids": tokens, "labels": tokens}


def _images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


def _sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400), "labels": torch.tensor([[3, 4, 5], [4, 5, 6]])}


# Name of the config and of the model without the ending, how large it is, what it is given.
_FAMILIES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT, _text),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "vocab_size": _WORDS, "window_size": 4, "max_position_embeddings": 16}, _text),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {**_GPT, "rotary_dim": 4}, _text),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _TEXT, _text),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", _GPT, _text),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", {**_GPT, "n_embd": 32, "n_head": 4, "rotary_dim": 4}, _text),
    "openai_gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", _GPT, _text),
    "opt": ("OPTConfig", "OPTForCausalLM", {**_TEXT, "ffn_dim": 24, "word_embed_proj_dim": 16}, _text),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": _WORDS}, _text),
    "falcon": ("FalconConfig", "FalconForCausalLM", {**_TEXT, "multi_query": True}, _text),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED, _text),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_GROUPED, "sliding_window": 4}, _text),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_GROUPED, **_EXPERTS}, _text),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GROUPED, _text),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _GROUPED, _text),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 12}, _text),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", _GROUPED, _text),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _GROUPED, _text),
    "phi": ("PhiConfig", "PhiForCausalLM", _TEXT, _text),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**_TEXT, "pad_token_id": 0}, _text),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {**_TEXT, "num_key_value_heads": 2}, _text),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", _GROUPED, _text),
    "granite": ("GraniteConfig", "GraniteForCausalLM", _GROUPED, _text),
    "cohere": ("CohereConfig", "CohereForCausalLM", _GROUPED, _text),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**_TEXT, "num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "n_shared_experts": 1}, _text),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": _WORDS}, _text),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "vocab_size": _WORDS}, _text),
    "bert": ("BertConfig", "BertForMaskedLM", _TEXT, _text),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _TEXT, _text),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": _WORDS}, _text),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**_TEXT, "embedding_size": 8}, _text),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**_TEXT, "embedding_size": 8}, _text),
    "deberta_v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 16}, _text),
    "fnet": ("FNetConfig", "FNetForMaskedLM", {**_TEXT, "type_vocab_size": 2}, _text),
    "funnel": ("FunnelConfig", "FunnelForMaskedLM", {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1], "num_decoder_layers": 1, "vocab_size": _WORDS}, _text),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5, _text),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", _T5, _text),
    "bart": ("BartConfig", "BartForConditionalGeneration", _PAIR, _text),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", _PAIR, _text),
    "marian": ("MarianConfig", "MarianMTModel", _PAIR, _text),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration", _PAIR, _text),
    "vit": ("ViTConfig", "ViTForImageClassification", _IMAGE, _images),
    "deit": ("DeiTConfig", "DeiTForImageClassification", _IMAGE, _images),
    "beit": ("BeitConfig", "BeitForImageClassification", {**_IMAGE, "out_indices": [1, 2]}, _images),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", _IMAGE, _images),
    "swin": ("SwinConfig", "SwinForImageClassification", {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "image_size": 16, "patch_size": 2, "num_labels": 3}, _images),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2, "num_labels": 3}, _images),
    "resnet": ("ResNetConfig", "ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3}, _images),
    "mobilenet_v2": ("MobileNetV2Config", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.25, "image_size": 32, "num_labels": 3}, _images),
    "poolformer": ("PoolFormerConfig", "PoolFormerForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1], "num_labels": 3}, _images),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", _SPEECH, _sound),
    "hubert": ("HubertConfig", "HubertForCTC", _SPEECH, _sound),
}  # fmt: skip


def _train(config: str, model: str, sizes: dict[str, Any], inputs: Any) -> list[Tensor]:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).train()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = made(**inputs()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *made.parameters(), *made.buffers()]


PROGRAMS: dict[str, Program] = {f"transformers {name}": partial(_train, *family) for name, family in _FAMILIES.items()}
