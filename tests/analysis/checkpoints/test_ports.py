"""Ports of real models: which weight became which, and what a port forgot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import aten_dump

State: TypeAlias = "dict[str, Tensor]"
LAYERS = 2


@pytest.fixture
def gpt2() -> State:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS, n_embd=64, n_head=4, vocab_size=200, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return noisy(GPT2LMHeadModel(config).state_dict())


@pytest.fixture
def llama() -> State:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=LAYERS, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=200, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    return noisy(LlamaForCausalLM(config).state_dict())


def noisy(state: State) -> State:
    """A fresh model's norms are all 1 and its biases all 0: no two can be told apart."""
    vectors = {name for name, tensor in state.items() if tensor.ndim == 1}
    return {
        name: tensor + 0.1 * torch.randn_like(tensor) if name in vectors else tensor.clone()
        for name, tensor in state.items()
    }


def linear_port(gpt2: State) -> State:
    """Conv1D to Linear, QKV split, other names."""
    found = {}
    for name, tensor in gpt2.items():
        name = name.replace("transformer.h", "layers")
        turned = tensor.T.contiguous() if tensor.ndim == 2 and "layers" in name else tensor
        if "c_attn" in name:
            found |= {
                name.replace("c_attn", f"{part}_proj"): chunk.contiguous()
                for part, chunk in zip("qkv", turned.chunk(3), strict=True)
            }
        elif name != "lm_head.weight":
            found[name] = turned
    return found


def test_conv1d_to_linear(gpt2: State) -> None:
    found = aten_dump.weights(linear_port(gpt2), gpt2)
    assert found.exit_code == 0
    k_proj = found.of("layers.1.attn.k_proj.weight")
    assert k_proj.baseline == ("transformer.h.1.attn.c_attn.weight",)
    assert set(k_proj.how) == {"transposed", "split"}
    assert k_proj.part == "columns 64-127 of 192"
    bias = found.of("layers.0.attn.v_proj.bias")
    assert (bias.baseline, bias.part) == (("transformer.h.0.attn.c_attn.bias",), "elements 128-191 of 192")
    assert found.of("layers.0.mlp.c_fc.weight").how == ("transposed",)
    assert "tied" in found.of("lm_head.weight").how  # the baseline's, as its embedding
    assert "  2 x layers.*.mlp.c_fc.weight = transformer.h.*.mlp.c_fc.weight (0-1): transposed" in found.answer()


def test_linear_to_conv1d_in_bfloat16(gpt2: State) -> None:
    found = aten_dump.weights(gpt2, {name: tensor.bfloat16() for name, tensor in linear_port(gpt2).items()})
    assert found.exit_code == 0
    fused = found.of("transformer.h.0.attn.c_attn.weight")
    assert [name.rsplit(".", 2)[1] for name in fused.baseline] == ["q_proj", "k_proj", "v_proj"]
    assert set(fused.how) == {"fused", "transposed", "cast"}
    assert fused.ulp is not None
    assert 0 < fused.ulp <= 0.5
    assert "fused" in found.of("transformer.h.0.attn.c_attn.bias").how


def test_what_a_port_forgot(gpt2: State) -> None:
    port = linear_port(gpt2)
    port["layers.1.attn.k_proj.weight"][3, 5] += 0.1
    port["layers.1.mlp.c_proj.weight"] = torch.randn(64, 256)
    port["layers.0.mlp.c_fc.weight"] = gpt2["transformer.h.0.mlp.c_fc.weight"].reshape(256, 64)
    port["v_head.weight"] = torch.randn(1, 64)
    del port["layers.0.ln_1.weight"]
    found = aten_dump.weights(port, gpt2)
    assert found.exit_code == 1
    one = found.of("layers.1.attn.k_proj.weight")
    assert (one.how[0], one.differing, one.part) == ("altered", 1, "columns 64-127 of 192")
    assert "in rows 3" in one.text
    assert "nothing in common" in found.of("layers.1.mlp.c_proj.weight").text
    assert "without a transposition" in found.of("layers.0.mlp.c_fc.weight").text
    assert found.of("v_head.weight").how == ("extra",)
    assert found.of("transformer.h.0.ln_1.weight").how == ("missing",)
    assert len([weight for weight in found if not weight.accounted]) == 5


def meta_layout(llama: State) -> State:
    """The names and the order of rotated pairs of the original."""
    names = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "self_attn": "attention", "model.": ""}
    found = {}
    for name, tensor in llama.items():
        if "q_proj" in name or "k_proj" in name:
            heads = 4 if "q_proj" in name else 2
            tensor = tensor.view(heads, 2, -1, 64).transpose(1, 2).reshape(tensor.shape)
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


def test_the_other_rope(llama: State) -> None:
    found = aten_dump.weights(llama, meta_layout(llama))
    assert found.exit_code == 0
    q_proj = found.of("model.layers.1.self_attn.q_proj.weight")
    assert q_proj.baseline == ("layers.1.attention.wq.weight",)
    assert q_proj.text == "permuted within heads of 16: pairs became halves (the other RoPE layout)"
    back = aten_dump.weights(meta_layout(llama), llama)
    assert "halves became pairs" in back.of("layers.1.attention.wk.weight").text
    assert back.exit_code == 0


def test_a_permutation_that_one_layer_lacks_has_a_line_of_its_own(llama: State) -> None:
    original = meta_layout(llama)
    original["layers.1.attention.wk.weight"] = llama["model.layers.1.self_attn.k_proj.weight"]
    lines = aten_dump.weights(llama, original).answer().splitlines()
    assert "  model.layers.1.self_attn.k_proj.weight = layers.1.attention.wk.weight: equal" in lines


def engine(llama: State) -> State:
    """QKV by groups of heads, gate and up row by row, a padded vocabulary."""
    found = {}
    for layer in range(LAYERS):
        mine = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in llama.items()
            if f".{layer}." in name
        }
        q, k, v = (mine[f"self_attn.{part}_proj.weight"] for part in "qkv")
        groups = [
            torch.cat([q[32 * g : 32 * g + 32], k[16 * g : 16 * g + 16], v[16 * g : 16 * g + 16]]) for g in (0, 1)
        ]
        gate_up = torch.stack([mine["mlp.gate_proj.weight"], mine["mlp.up_proj.weight"]], 1)
        found[f"h.{layer}.qkv"] = torch.cat(groups)
        found[f"h.{layer}.gate_up"] = gate_up.reshape(-1, 64)
        found[f"h.{layer}.down"], found[f"h.{layer}.o"] = mine["mlp.down_proj.weight"], mine["self_attn.o_proj.weight"]
        found[f"h.{layer}.n1"] = mine["input_layernorm.weight"]
        found[f"h.{layer}.n2"] = mine["post_attention_layernorm.weight"]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        found[name] = torch.cat([llama[name], torch.zeros(56, 64)])
    return found | {"norm": llama["model.norm.weight"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_engine(llama: State, dtype: torch.dtype) -> None:
    found = aten_dump.weights({name: tensor.to(dtype) for name, tensor in engine(llama).items()}, llama)
    assert found.exit_code == 0
    assert "64 + 32 + 32" not in found.answer()
    assert "32 + 16 + 16 rows of each in turn" in found.of("h.1.qkv").text
    assert "1 row of each in turn" in found.of("h.1.gate_up").text
    assert "padded: rows 200-255 are 0" in found.of("lm_head.weight").text
    assert ("cast" in found.of("h.0.down").how) == (dtype != torch.float32)
    back = aten_dump.weights(llama, {name: tensor.to(dtype) for name, tensor in engine(llama).items()})
    assert back.exit_code == 0
    assert back.of("model.layers.0.self_attn.k_proj.weight").part == "rows 32-47, 96-111 of 128"


def test_rows_that_a_vocabulary_lost_or_won(llama: State) -> None:
    more = llama | {"lm_head.weight": torch.cat([llama["lm_head.weight"], torch.randn(2, 64)])}
    found = aten_dump.weights(more, llama)
    assert found.exit_code == 1
    assert "rows 200-201 are in no tensor of the baseline" in found.of("lm_head.weight").text
    less = aten_dump.weights(llama, more)
    assert less.exit_code == 1
    assert "rows 200-201 are in no tensor of the target" in less.answer()


def shards(llama: State, rank: int) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in llama.items():
        dim = 1 if "o_proj" in name or "down" in name else 0
        yield name, tensor if tensor.ndim == 1 else tensor.chunk(2, dim)[rank].contiguous()


def test_shards_of_tensor_parallel(llama: State) -> None:
    parts = {f"{name}@{rank}": tensor for rank in (0, 1) for name, tensor in shards(llama, rank)}
    found = aten_dump.weights(llama, parts)
    assert found.exit_code == 0
    assert found.of("model.layers.0.self_attn.o_proj.weight").text == "fused, one after the other, columns"
    back = aten_dump.weights(parts, llama)
    assert back.exit_code == 0
    assert back.of("model.layers.0.mlp.down_proj.weight@1").part == "columns 48-95 of 96"
    parts["lm_head.weight@1"] = parts["lm_head.weight@0"]  # a shard twice, and one not at all
    twice = aten_dump.weights(parts, llama)
    assert twice.exit_code == 1
    assert "lm_head.weight: missing: rows 100-199" in twice.answer()


def adapter(llama: State) -> tuple[State, State]:
    """The state of a model with adapters, by peft's names, and of the merged one; one adapter has another scale."""
    apart, merged = dict(llama), dict(llama)
    for layer in range(LAYERS):
        for part in "qv":
            name = f"model.layers.{layer}.self_attn.{part}_proj."
            weight = apart.pop(f"{name}weight")
            down, up = torch.randn(8, 64) * 0.05, torch.randn(len(weight), 8) * 0.05
            apart |= {
                f"base_model.model.{name}base_layer.weight": weight,
                f"base_model.model.{name}lora_A.default.weight": down,
                f"base_model.model.{name}lora_B.default.weight": up,
            }
            merged[f"{name}weight"] = weight + (1.0 if (layer, part) == (1, "v") else 2.0) * (up @ down)
    return apart, merged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_merged(llama: State, dtype: torch.dtype) -> None:
    apart, merged = adapter(llama)
    merged = {name: tensor.to(dtype) for name, tensor in merged.items()}
    found = aten_dump.weights(merged, apart)
    assert found.exit_code == 0
    q_proj = found.of("model.layers.1.self_attn.q_proj.weight")
    assert len(q_proj.baseline) == 3
    assert q_proj.text.startswith("an adapter is merged, 2 times the product of ")
    assert "merged, 1 times" in found.of("model.layers.1.self_attn.v_proj.weight").text
    assert aten_dump.weights(apart, merged).exit_code == 0


def test_an_adapter_that_was_left_out(llama: State) -> None:
    apart, merged = adapter(llama)
    merged["model.layers.0.self_attn.q_proj.weight"] = llama["model.layers.0.self_attn.q_proj.weight"]
    wrong = [weight for weight in aten_dump.weights(merged, apart) if not weight.accounted]
    assert [weight.how for weight in wrong] == [("missing",)] * 2
    assert all("layers.0.self_attn.q_proj.lora_" in weight.baseline[0] for weight in wrong)


def test_norms_folded_into_the_layers_behind(llama: State) -> None:
    folded = dict(llama)
    for layer in range(LAYERS):
        norm = f"model.layers.{layer}.input_layernorm.weight"
        for part in "qkv":
            folded[f"model.layers.{layer}.self_attn.{part}_proj.weight"] *= llama[norm]
        folded[norm] = torch.ones(64)
    folded["model.layers.0.self_attn.q_proj.weight"] = llama["model.layers.0.self_attn.q_proj.weight"] * llama[norm]
    plain = {name: tensor.clone() for name, tensor in llama.items()}
    for layer in range(LAYERS):
        for part in "qkv":
            name = f"model.layers.{layer}.self_attn.{part}_proj.weight"
            plain[name] = folded[name] / llama[f"model.layers.{layer}.input_layernorm.weight"]
    found = aten_dump.weights(folded, plain)
    k_proj = found.of("model.layers.1.self_attn.k_proj.weight")
    assert k_proj.baseline[1:] == ("model.layers.1.input_layernorm.weight",)
    assert "a norm of the baseline is merged: columns times weight" in k_proj.text


def convolutions() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32)]
    for norm in layers[1::2]:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)  # of either sign
        nn.init.normal_(norm.bias)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10)).eval()


def test_batch_norm_folded_into_convolutions() -> None:
    net = convolutions()
    folded = nn.Sequential(fuse_conv_bn_eval(net[0], net[1]), fuse_conv_bn_eval(net[2], net[3]), net[4], net[5])
    for found in (aten_dump.weights(folded, net), aten_dump.weights(net, folded)):
        assert found.exit_code == 0
        assert "times weight / sqrt(variance + 1e-05)" in found.of("0.weight").text
        assert len([weight for weight in found if "merged" in weight.how]) == 4
    with torch.no_grad():
        folded[1].weight[7] *= 1.5
    assert aten_dump.weights(folded, net).exit_code == 1


def test_kernels_in_the_order_of_another_framework() -> None:
    state = convolutions().state_dict()
    turned = {
        name: tensor.permute(2, 3, 1, 0).contiguous() if tensor.ndim == 4 else tensor for name, tensor in state.items()
    }
    found = aten_dump.weights(turned, state)
    assert found.exit_code == 0
    assert found.of("0.weight").text == "its dimensions are those of the baseline in the order (2, 3, 1, 0)"


def test_experts() -> None:
    torch.manual_seed(0)
    apart = {f"experts.{n}.{part}.weight": torch.randn(32, 16) for n in range(4) for part in ("gate", "up")}
    apart |= {f"experts.{n}.down.weight": torch.randn(16, 32) for n in range(4)}
    gate_up = [torch.cat([apart[f"experts.{n}.{part}.weight"] for part in ("gate", "up")]) for n in range(4)]
    stacked = {
        "gate_up": torch.stack(gate_up),
        "down": torch.stack([apart[f"experts.{n}.down.weight"].T for n in range(4)]),
    }
    assert aten_dump.weights(stacked, apart).exit_code == 0
    found = aten_dump.weights(apart, stacked)
    assert found.exit_code == 0
    assert found.of("experts.2.up.weight").part == "[2, 32:64, :]"
    assert "4 x experts.*.up.weight = gate_up (0-3): [0, 32:64, :], [1, 32:64, :], ..." in found.answer()
    swapped = apart | {"experts.1.up.weight": apart["experts.2.up.weight"]}
    assert "gate_up: missing: " in aten_dump.weights(swapped, stacked).answer()
