"""Ports of a model in which one layer is another than its siblings: it has a line of its own, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import aten_dump
from aten_dump.analysis.checkpoints.found_weights import Weights

State: TypeAlias = "dict[str, Tensor]"
UNLIKE = "Accounted for, but laid out unlike the same weight of other layers:"


def llama(layers: int = 3) -> State:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    found = LlamaForCausalLM(config).state_dict()
    return {
        name: tensor + 0.1 * torch.randn_like(tensor) if tensor.ndim == 1 else tensor.clone()
        for name, tensor in found.items()
    }


def exchange(state: State, one: str, other: str) -> State:
    """Give two names, or all names that begin so, each other's tensors."""
    names = {name: other + name.removeprefix(one) for name in state if name.startswith(one)}
    return state | {to: state[name] for name, to in names.items()} | {name: state[to] for name, to in names.items()}


def renamed(state: State) -> State:
    names = {"model.layers": "h", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    return state


def rotated(weight: Tensor) -> Tensor:
    return weight.view(len(weight) // 16, 8, 2, -1).transpose(1, 2).reshape(weight.shape)


def fused(state: State, order: dict[int, str], rotates: dict[int, str]) -> State:
    """Q, k and v in one, of some layers in another order, and some of them rotated."""
    found = dict(state)
    for layer in range(len(order)):
        name = f"model.layers.{layer}.self_attn."
        parts = {part: found.pop(f"{name}{part}_proj.weight") for part in "qkv"}
        parts |= {part: rotated(parts[part]) for part in rotates.get(layer, "")}
        found[f"{name}qkv.weight"] = torch.cat([parts[part] for part in order[layer]])
    return found


def both_ways(one: State, other: State) -> tuple[Weights, Weights]:
    return aten_dump.weights(one, other), aten_dump.weights(other, one)


def unlike(found: Weights) -> set[str]:
    return {weight.target[0] for weight in found if "unlike" in weight.how}


def exchanged(found: Weights) -> set[str]:
    wrong = {weight.target[0] for weight in found if "exchanged" in weight.how}
    assert wrong == {weight.target[0] for weight in found if not weight.accounted and weight.target}
    assert found.exit_code == (1 if wrong else 0), found.answer()
    return wrong


def in_shards(state: State, folder: Path) -> Path:
    folder.mkdir()
    names = list(state)
    for number in range(3):
        part = {name: state[name].contiguous() for name in names[number::3]}
        save_file(part, folder / f"model-{number + 1:05d}-of-00003.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_weight_of_two_layers_is_exchanged(dtype: torch.dtype, tmp_path: Path) -> None:
    state = llama()
    port = {name: tensor.to(dtype) for name, tensor in renamed(state).items()}
    port = exchange(port, "h.1.mlp.w1.weight", "h.2.mlp.w1.weight")
    sides = in_shards(port, tmp_path / "port"), in_shards(state, tmp_path / "state")
    found, back = aten_dump.weights(*sides), aten_dump.weights(*reversed(sides))
    assert exchanged(found) == {"h.1.mlp.w1.weight", "h.2.mlp.w1.weight"}
    assert exchanged(back) == {"model.layers.1.mlp.gate_proj.weight", "model.layers.2.mlp.gate_proj.weight"}
    gate = found.of("h.1.mlp.w1.weight")
    assert gate.baseline == ("model.layers.2.mlp.gate_proj.weight",)
    expected = "model.layers.1.mlp.gate_proj.weight was expected, as most weights of h.1 are those of model.layers.1"
    assert f"exchanged: {expected}" in gate.text
    assert f"  h.1.mlp.w1.weight = model.layers.2.mlp.gate_proj.weight: {gate.text}" in found.answer().splitlines()
    assert "h.2.mlp.w1.weight was expected" in back.of("model.layers.2.mlp.gate_proj.weight").text


def test_two_kinds_of_weight_are_exchanged_in_one_layer() -> None:
    for layers in (2, 3):
        state = llama(layers)
        keys, values = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "kv")
        for found in both_ways(exchange(state, keys, values), state):
            assert exchanged(found) == {keys, values}


def test_keys_and_values_are_exchanged_in_a_fused_weight() -> None:
    state = llama()
    found, back = both_ways(fused(state, {0: "qkv", 1: "qvk", 2: "qkv"}, {}), state)
    assert exchanged(found) == {"model.layers.1.self_attn.qkv.weight"}
    text = found.of("model.layers.1.self_attn.qkv.weight").text
    assert "model.layers.1.self_attn.k_proj.weight was expected in rows 64-95, as in most other layers" in text
    assert "  2 x model.layers.*.self_attn.qkv.weight = " in found.answer()
    assert exchanged(back) == {f"model.layers.1.self_attn.{part}_proj.weight" for part in "kv"}
    shared = "2 x model.layers.*.self_attn.k_proj.weight = model.layers.*.self_attn.qkv.weight (0, 2): "
    assert f"{shared}rows 64-95 of 128" in back.answer()
    two = fused(llama(2), {0: "qkv", 1: "qvk"}, {})  # of two layers none is the usual one
    assert unlike(aten_dump.weights(two, llama(2))) == {f"model.layers.{n}.self_attn.qkv.weight" for n in (0, 1)}


def test_a_layer_that_is_permuted_otherwise_is_named() -> None:
    state = llama()
    order = dict.fromkeys(range(3), "qkv")
    found, back = both_ways(fused(state, order, {0: "qk", 1: "q", 2: "qk"}), state)
    assert exchanged(found) == exchanged(back) == set()
    assert unlike(found) == {"model.layers.1.self_attn.qkv.weight"}
    assert unlike(back) == {"model.layers.1.self_attn.k_proj.weight"}
    assert found.of("model.layers.1.self_attn.qkv.weight").text.endswith("(the other RoPE layout) in rows 0-63")
    assert found.of("model.layers.2.self_attn.qkv.weight").text.endswith("(the other RoPE layout) in rows 0-95")
    for one in (found, back):
        assert one.answer().startswith("All weights are accounted for, 1 of them laid out unlike other layers: ")
        assert len(one.answer().partition(UNLIKE)[2].partition("\n\n")[0].strip().splitlines()) == 1
    honest = fused(state, order, dict.fromkeys(range(3), "qk"))
    assert not any(unlike(one) | exchanged(one) for one in both_ways(honest, state))


def transposed(state: State) -> State:
    """Linear to Conv1D, but for one square weight."""
    kept = "model.layers.1.self_attn.o_proj.weight"
    return {name: tensor.T if tensor.ndim == 2 and name != kept else tensor for name, tensor in state.items()}


def scaled(state: State) -> State:
    name = "model.layers.1.self_attn.q_proj.weight"
    return state | {name: state[name] * 0.25}


def rows_exchanged(state: State) -> State:
    name = "model.layers.1.mlp.up_proj.weight"
    order = torch.arange(96)
    order[[3, 70]] = order[[70, 3]]
    return state | {name: state[name][order]}


def less_one(state: State) -> State:
    """Norms as Gemma keeps them, but for one."""
    kept = "model.layers.1.input_layernorm.weight"
    return {name: tensor - 1 if tensor.ndim == 1 and name != kept else tensor for name, tensor in state.items()}


@pytest.mark.parametrize("port", [transposed, scaled, rows_exchanged, less_one])
def test_a_weight_that_is_laid_out_unlike_other_layers(port: Callable[[State], State]) -> None:
    for found in both_ways(port(llama()), llama()):
        assert found.exit_code == 0, found.answer()
        assert len(unlike(found)) == 1
        assert ".layers.1." in unlike(found).pop()
        assert UNLIKE in found.answer()
    assert "less_one" not in port.__name__ or found.of("model.layers.0.input_layernorm.weight").how[0] == "offset"


def test_few_rows_in_another_order_are_named() -> None:
    for found in both_ways(rows_exchanged(llama()), llama()):
        assert found.of("model.layers.1.mlp.up_proj.weight").text == "rows 3, 70 in another order"


def test_whole_layers_are_exchanged() -> None:
    for layers in (3, 4):
        state = llama(layers)
        for found in both_ways(exchange(state, "model.layers.1.", "model.layers.2."), state):
            lines = found.answer().splitlines()
            place = next(n for n, line in enumerate(lines) if "model.layers.1.mlp.up_proj.weight =" in line)
            assert "  model.layers.1.mlp.up_proj.weight = model.layers.2.mlp.up_proj.weight: " in lines[place]
            assert place < lines.index("Accounted for:")
            odd = exchanged(found) if layers == 4 else unlike(found)  # of three the most are not in order
            assert len(odd) == 18


def numbered(state: State, number: Callable[[int], str]) -> State:
    """Layers under other numbers."""
    found = {}
    for name, tensor in state.items():
        parts = name.split(".")
        found[".".join(["h", number(int(parts[2])), *parts[3:]]) if "layers" in parts else name] = tensor
    return found


NUMBERS: dict[str, Callable[[int], str]] = {
    "from one": lambda n: f"{n + 1}",
    "every third": lambda n: f"{3 * n}",
    "in stages": lambda n: f"{n // 2}.layers.{n % 2}",
}


@pytest.mark.parametrize("way", NUMBERS)
def test_layers_under_other_numbers(way: str) -> None:
    state = llama(4)
    port = numbered(state, NUMBERS[way])
    for found in both_ways(port, state):
        assert not unlike(found) | exchanged(found), found.answer()
        assert sum("4 x " in line for line in found.answer().splitlines()) == 9
    one, other = (f"h.{NUMBERS[way](n)}.mlp.gate_proj.weight" for n in (1, 2))
    wrong, back = both_ways(exchange(port, one, other), state)
    assert exchanged(wrong) == {one, other}
    assert exchanged(back) == {f"model.layers.{n}.mlp.gate_proj.weight" for n in (1, 2)}
    assert "(0-3 = 1-4)" in back.answer() or way != "from one"


def test_names_that_are_used_otherwise_in_all_layers_are_no_exchange() -> None:
    """Of Llama's w1, w2 and w3 others make the second what is its third."""
    state = llama()
    port = state
    for layer in range(3):
        port = exchange(port, f"model.layers.{layer}.mlp.gate_proj", f"model.layers.{layer}.mlp.up_proj")
    assert not any(unlike(found) | exchanged(found) for found in both_ways(port, state))


def test_norms_that_are_kept_with_the_layer_before() -> None:
    """The names move by one layer; at both ends one is left."""
    state, norm = llama(4), "model.layers.{}.input_layernorm.weight"
    port = {name: tensor for name, tensor in state.items() if "input_layernorm" not in name and name != "norm.weight"}
    port |= {f"model.layers.{n - 1}.norm_out.weight": state[norm.format(n)] for n in range(1, 4)}
    port |= {"first_norm.weight": state[norm.format(0)]}
    assert not any(exchanged(found) for found in both_ways(port, state))


def experts() -> State:
    torch.manual_seed(0)
    config = MixtralConfig(
        num_hidden_layers=3, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=50, num_local_experts=4, max_position_embeddings=32,
    )  # fmt: skip
    found = {}
    for name, tensor in MixtralForCausalLM(config).state_dict().items():
        if "gate_up_proj" in name or "experts.down_proj" in name:
            for n, expert in enumerate(tensor):
                parts = zip(("w1", "w3"), expert.chunk(2), strict=True) if "gate_up" in name else (("w2", expert),)
                found |= {f"{name.rpartition('.')[0]}.{n}.{part}.weight": one.clone() for part, one in parts}
        else:
            found[name] = tensor + 0.1 * torch.randn_like(tensor) if tensor.ndim == 1 else tensor
    return found


def stacked(state: State) -> State:
    kept = {name: tensor for name, tensor in state.items() if "experts" not in name}
    prefixes = dict.fromkeys(name.partition("experts.")[0] for name in state if "experts" in name)
    return kept | {
        f"{prefix}{part}": torch.stack([state[f"{prefix}experts.{n}.{part}.weight"] for n in range(4)])
        for prefix in prefixes
        for part in ("w1", "w2", "w3")
    }


def names_of_experts(state: State, layer: int, part: str) -> list[str]:
    return [name for name in state if f".layers.{layer}." in name and name.endswith(f".{part}.weight")]


def test_one_weight_of_two_experts_is_exchanged() -> None:
    state = experts()
    names = names_of_experts(state, 1, "w1")
    assert len(names) == 4
    port = exchange(state, names[1], names[2])
    for found in both_ways(port, state):
        assert exchanged(found) == {names[1], names[2]}
    found, back = both_ways(stacked(port), state)
    (name,) = exchanged(found)
    assert found.of(name).baseline == (names[0], names[2], names[1], names[3])
    assert "was expected in [1, :, :], as in most other layers" in found.of(name).text
    assert exchanged(back) == {names[1], names[2]}
    assert "of the baseline was expected in" in back.of(names[1]).text
    for honest in both_ways(stacked(state), state):
        assert not exchanged(honest) | unlike(honest)
    for permuted in both_ways(permuted_experts(state), state):
        assert not exchanged(permuted)
        assert unlike(permuted)


def permuted_experts(state: State) -> State:
    """All weights of the experts and the rows of their routers: the same function."""
    order = [2, 0, 3, 1]
    found = {name: tensor[order] if name.endswith("gate.weight") else tensor for name, tensor in state.items()}
    for layer in range(3):
        for part in ("w1", "w2", "w3"):
            names = names_of_experts(state, layer, part)
            found |= {name: state[names[place]] for name, place in zip(names, order, strict=True)}
    return found


def padded(weight: Tensor, first: int, last: int, number: float) -> Tensor:
    return torch.cat([torch.full((first, 64), number), weight, torch.full((last, 64), number)])


@pytest.mark.parametrize("number", [0.0, 0.02])
def test_padding_is_said_in_both_directions(number: float) -> None:
    state, name = llama(), "model.embed_tokens.weight"
    found, back = both_ways(state | {name: padded(state[name], 0, 28, number)}, state)
    assert (found.exit_code, back.exit_code) == (0, 0)
    assert found.of(name).text == f"padded: rows 100-127 are {number:g}"
    assert back.of(name).part == "rows 0-99 of 128"
    assert back.of(name).text == f"padded: rows 100-127 of the baseline are {number:g}"
    found, back = both_ways(state | {name: padded(state[name], 28, 0, number)}, state)
    assert (found.exit_code, back.exit_code) == (0, 0)
    assert found.of(name).text == f"padded: rows 0-27 are {number:g}, rows lie 28 later than in the baseline"
    assert back.of(name).part == "rows 28-127 of 128"
    assert "rows lie 28 earlier than in the baseline" in back.of(name).text


def test_rows_that_are_no_padding_have_no_counterpart() -> None:
    state, name = llama(), "model.embed_tokens.weight"
    mean = state[name].mean(0, keepdim=True).expand(28, 64)
    found, back = both_ways(state | {name: torch.cat([state[name], mean])}, state)
    assert (found.exit_code, back.exit_code) == (1, 1)
    assert "rows 100-127 are in no tensor of the baseline" in found.of(name).text
    assert back.of(name).part == "rows 0-99 of 128"
    assert f"{name}: missing: rows 100-127 are in no tensor of the target" in back.answer()


def test_padding_between_fused_weights() -> None:
    state, zeros = llama(), torch.zeros(16, 64)
    parts = [state[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    port = {"gate_up": torch.cat([parts[0], zeros, parts[1], zeros])}
    found, back = both_ways(port, dict(zip(("gate", "up"), parts, strict=True)))
    assert (found.exit_code, back.exit_code) == (0, 0)
    assert "padded: rows 96-111, 208-223 are 0" in found.of("gate_up").text
    assert "gate_up: padded: rows 96-111, 208-223 are 0, and in no tensor of the target" in back.answer()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("number", "text"), [(-1.0, "less 1"), (0.5, "plus 0.5")])
def test_a_constant_is_added_to_all_elements(dtype: torch.dtype, number: float, text: str) -> None:
    state = {name: tensor.to(dtype) for name, tensor in llama().items()}
    port = {name: tensor + number if tensor.ndim == 1 else tensor for name, tensor in state.items()}
    found, back = both_ways(port, state)
    assert (found.exit_code, back.exit_code) == (0, 0), found.answer()
    norms = [name for name, tensor in state.items() if tensor.ndim == 1]
    assert all(found.of(name).text.startswith(f"{text} in all elements (whether this is meant") for name in norms)
    other = text.replace("less", "plus") if "less" in text else text.replace("plus", "less")
    assert all(back.of(name).text.startswith(f"{other} in all elements") for name in norms)
    assert not unlike(found) | unlike(back)
    wrong = port | {norms[0]: port[norms[0]].clone()}
    wrong[norms[0]][3] += 0.25
    assert [weight.target[0] for weight in aten_dump.weights(wrong, state) if not weight.accounted] == [norms[0]]


def test_a_head_that_is_a_copy_of_the_embedding() -> None:
    """Equal, in another dtype, transposed, and with its rows moved."""
    state = llama()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    without = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    for change, text, code in (
        (lambda w: w.clone(), "equal", 0),
        (lambda w: w.bfloat16(), "bfloat16", 0),
        (lambda w: w.T.contiguous(), "transposed", 0),
        (lambda w: w.roll(1, 0), "rows in another order, a copy", 1),
    ):
        port = state | {"lm_head.weight": change(state["lm_head.weight"])}
        for other in (state, without):
            found, back = both_ways(port, other)
            assert (found.exit_code, back.exit_code) == (code, code), found.answer()
            assert text in found.answer()


def test_copies_do_not_say_which_layer_they_belong_to() -> None:
    """Norms of 1 and biases of 0, under names that say little."""
    state, port = {}, {}
    for layer in range(4):
        weight = torch.randn(32, 32)
        state |= {
            f"layers.{layer}.w": weight,
            f"layers.{layer}.ln": torch.ones(32),
            f"layers.{layer}.ln2": torch.ones(32),
        }
        port |= {f"h.{3 - layer}.rms_b": torch.ones(32), f"h.{3 - layer}.rms_a": torch.ones(32)}
        port[f"h.{layer}.proj"] = weight
    for found in both_ways(port, state):
        assert not exchanged(found) | unlike(found)
