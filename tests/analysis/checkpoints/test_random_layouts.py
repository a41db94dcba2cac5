"""Checkpoints that are laid out otherwise at random, with and without a fault: none is accused, no fault passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

import aten_dump
from tests.sampling import one_in

State: TypeAlias = "dict[str, Tensor]"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def original(seed: int, layers: Sequence[int] = (1, 3)) -> State:
    chosen = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    width = chosen.choice([32, 48, 64])
    shapes = {
        "q.weight": (width, width), "k.weight": (width // 2, width), "v.weight": (width // 2, width),
        "o.weight": (width, width), "up.weight": (2 * width, width), "down.weight": (width, 2 * width),
        "q.bias": (width,), "n.weight": (width,), "conv.weight": (width, 16, 3),
    }  # fmt: skip
    found = {"embed.weight": torch.randn(100, width, generator=generator)}
    for layer in range(chosen.choice(layers)):
        for name, shape in shapes.items():
            offset = 1.0 if name in ("n.weight", "down.weight") else 0.0  # rows that are nearly parallel
            found[f"layers.{layer}.{name}"] = offset + 0.05 * torch.randn(*shape, generator=generator)
    return found


def rotated(weight: Tensor) -> Tensor:
    return weight.view(len(weight) // 8, 2, 4, -1).transpose(1, 2).reshape(weight.shape)


def fused(parts: list[Tensor], groups: int) -> Tensor:
    return torch.cat([torch.cat([part.chunk(groups)[group] for part in parts]) for group in range(groups)])


def ported(state: State, seed: int) -> State:
    chosen = random.Random(seed + 1)
    rotates, turns, pads, renames, reorders = (chosen.random() < 0.5 for _ in range(5))
    groups, dtype = chosen.choice([0, 1, 2]), chosen.choice(DTYPES)
    found: State = {}
    for layer in {name.split(".")[1] for name in state if name.startswith("layers")}:
        own = {name.split(".", 2)[2]: tensor for name, tensor in state.items() if name.startswith(f"layers.{layer}.")}
        if rotates:
            own |= {name: rotated(own[name]) for name in ("q.weight", "k.weight", "q.bias")}
        if groups:
            own["qkv.weight"] = fused([own.pop(f"{part}.weight") for part in "qkv"], groups)
        if reorders:
            order = torch.randperm(len(own["up.weight"]), generator=torch.Generator().manual_seed(seed))
            own |= {"up.weight": own["up.weight"][order], "down.weight": own["down.weight"][:, order]}
        for name, tensor in own.items():
            as_kept = tensor.T if turns and tensor.ndim == 2 else tensor
            found[f"h.{layer}.{name}" if renames else f"layers.{layer}.{name}"] = as_kept.contiguous().to(dtype)
    padding = torch.zeros(28 if pads else 0, state["embed.weight"].shape[1])
    return found | {"wte" if renames else "embed.weight": torch.cat([state["embed.weight"], padding]).to(dtype)}


def one_element(weight: Tensor, at: int) -> Tensor:
    weight.view(len(weight), -1)[at, at % 8] += 0.5
    return weight


def one_row(weight: Tensor, at: int) -> Tensor:
    weight[at] *= 1.25
    return weight


def one_row_reversed(weight: Tensor, at: int) -> Tensor:
    rows = weight.view(len(weight), -1)
    rows[at] = rows[at].flip(0)
    return weight


def one_row_lost(weight: Tensor, at: int) -> Tensor:
    weight[at] = 0
    return weight


def trained_on(weight: Tensor, at: int) -> Tensor:
    return (weight.float() + 0.01 * torch.randn(weight.shape)).to(weight.dtype)


def never_loaded(weight: Tensor, at: int) -> Tensor:
    return (0.05 * torch.randn(weight.shape)).to(weight.dtype)


FAULTS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    one_element, one_row, one_row_reversed, one_row_lost, trained_on, never_loaded,
)  # fmt: skip


@pytest.mark.parametrize("seed", one_in(3, range(12)))
def test_a_port_is_accounted_for_and_its_fault_is_named(seed: int) -> None:
    state = original(seed)
    port = ported(state, seed)
    for sides in ((port, state), (state, port)):
        found = aten_dump.weights(*sides)
        assert found.exit_code == 0, found.answer()
        assert not any({"unlike", "exchanged"} & set(weight.how) for weight in found), found.answer()
    chosen = random.Random(seed + 2)
    name = chosen.choice([name for name, tensor in port.items() if tensor.ndim > 1])
    for fault in FAULTS:
        wrong = port | {name: fault(port[name].clone(), chosen.randrange(16))}
        found = aten_dump.weights(wrong, state)
        assert found.exit_code == 1, (fault.__name__, name)
        sources = set(aten_dump.weights(port, state).of(name).baseline)
        guilty = [weight for weight in found if not weight.accounted]
        assert all(name in weight.target or sources & set(weight.baseline) for weight in guilty), found.answer()


@pytest.mark.parametrize("seed", one_in(3, range(12)))
def test_a_weight_that_two_layers_of_a_port_exchanged_is_named(seed: int) -> None:
    chosen, state = random.Random(seed + 3), original(seed, [3])
    port = ported(state, seed)
    name = chosen.choice([name for name in port if ".0." in name])
    other = name.replace(".0.", f".{chosen.choice((1, 2))}.")
    port |= {name: port[other], other: port[name]}
    for sides in ((port, state), (state, port)):
        found = aten_dump.weights(*sides)
        assert found.exit_code == 1, found.answer()
        wrong = [weight for weight in found if "exchanged" in weight.how]
        assert {name, other} <= {one for weight in wrong for one in (*weight.target, *weight.baseline)}
        sources = {*found.of(name).baseline, *found.of(other).baseline, name, other}
        assert all(sources & {*weight.target, *weight.baseline} for weight in wrong), found.answer()
