"""Parameters that are views of one long tensor, on which the optimizer works: against an optimizer of PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.flow.flat_memory import RankWithParts, with_parts
from tests.analysis.by_distance.steps import seeded
from tests.sampling import one_in

LR, DECAY, BETA1, EPSILON = 1e-2, 0.01, 0.9, 1e-8


class Stepping(Protocol):
    def zero_grad(self) -> object: ...
    def step(self) -> object: ...


class FlatAdamW:
    """AdamW on one long tensor; parameters and their gradients are views."""

    def __init__(self, params: Any, beta2: float = 0.999) -> None:
        params, self.beta2, self.steps, at = list(params), beta2, 0, 0
        length = sum(param.numel() for param in params)
        self.flat, self.grad, self.first, self.second = (torch.zeros(length) for _ in range(4))
        for param in params:
            part = slice(at, at + param.numel())
            self.flat[part] = param.data.flatten()
            param.data, param.grad = (memory[part].view_as(param) for memory in (self.flat, self.grad))
            at += param.numel()

    def zero_grad(self) -> None:
        self.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        self.flat.mul_(1 - LR * DECAY)
        self.first.mul_(BETA1).add_(self.grad, alpha=1 - BETA1)
        self.second.mul_(self.beta2).addcmul_(self.grad, self.grad, value=1 - self.beta2)
        denominator = (self.second.sqrt() / math.sqrt(1 - self.beta2**self.steps)).add_(EPSILON)
        self.flat.addcdiv_(self.first, denominator, value=-LR / (1 - BETA1**self.steps))


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))


def trained(path: Path, make: Callable[[Any], Stepping]) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for step in range(4):
            optimizer.zero_grad()
            out = model(seeded(6, 8, seed=step))
            nn.functional.cross_entropy(out, torch.arange(6) % 5).backward()
            optimizer.step()
            dump.step()
    return path


def adamw(**how: bool) -> Callable[[Any], Stepping]:
    return partial(torch.optim.AdamW, lr=LR, weight_decay=DECAY, **how)


@pytest.mark.parametrize("how", one_in(3, [{"foreach": False}, {"foreach": True}, {"fused": True}]), ids=str)
def test_flat_parameters_agree_with_those_of_any_optimizer(tmp_path: Path, how: dict[str, bool]) -> None:
    one, other = trained(tmp_path / "flat", FlatAdamW), trained(tmp_path / "apart", adamw(**how))
    for found in (compare(one, other), compare(other, one)):
        assert found.verdict == "within", found.answer()


def test_a_wrong_update_of_flat_parameters_is_found(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "wrong", partial(FlatAdamW, beta2=0.99)), trained(tmp_path / "apart", adamw())
    found = compare(one, other)
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    place = found.cause.row.place
    assert (found.cause.side, place.op) == ("target", "aten::mul_.Tensor"), found.answer()
    assert "in FlatAdamW.step" in place.source


def test_what_a_parameter_is_after_a_write_to_all_of_them(tmp_path: Path) -> None:
    rank = with_parts(open_dump(trained(tmp_path / "flat", FlatAdamW)).step(0).rank(0))
    assert isinstance(rank, RankWithParts)
    call = rank["Aten.addcdiv_.0.forward"]
    given, written = call.inputs[0][0], call.mutated_values["self"]
    parts = [[rank.value_by_id(id) for id in rank.parts[value.id]] for value in (given, written)]
    shapes = [[16, 8], [16], [16], [16], [5, 16], [5]]
    assert [list(part.shape) for part in parts[1]] == shapes
    for before, after in zip(*parts, strict=True):
        assert torch.equal(after.tensor().flatten(), written.tensor()[after.storage_offset :][: after.numel])
        assert before.shape == after.shape and before.version < after.version
    gradients = rank.parts[call.inputs[0][1].id]
    assert [list(rank.value_by_id(id).shape) for id in gradients] == shapes, "of all that is as long"


def test_a_part_is_what_was_seen_when_it_was_written_last(tmp_path: Path) -> None:
    rank = with_parts(open_dump(trained(tmp_path / "flat", FlatAdamW)).step(0).rank(0))
    assert isinstance(rank, RankWithParts)
    read = rank["Aten.addcmul_.0.forward"].inputs[0][1]
    written = {id for call in rank.calls.filter(op="aten::add_.Tensor") for _, id in call.written_slots()}
    assert set(rank.parts[read.id]) <= written


def test_programs_without_flat_memory_are_left_as_they_are(tmp_path: Path) -> None:
    rank = open_dump(trained(tmp_path / "apart", adamw())).step(0).rank(0)
    assert with_parts(rank) is rank


def test_a_tensor_that_is_filled_one_by_one_has_no_parts(tmp_path: Path) -> None:
    """Its elements are no parameters: else every tensor of its length would have numbers for parts."""
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full")):
        filled, last = torch.zeros(12), torch.ones(())
        for at in range(12):
            last = last * 0.9 + at
            filled[at] = last
        (filled * 2).sum()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert with_parts(rank) is rank
