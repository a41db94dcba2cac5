"""Where much is written in two ways, the call that is wrong is named, and not the first that only one side makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

SIZE, HEADS, WORDS = 16, 2, 7


def record(path: Path, run: Callable[[], object], model: nn.Module | None = None) -> Path:
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        run()
        dump.step()
    return path


def compared(folder: Path, target: Callable[[], object], baseline: Callable[[], object]) -> Comparison:
    return compare(record(folder / "target", target), record(folder / "baseline", baseline))


# -- a rotary table as complex numbers, and as cosines and sines of two halves ------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o, self.up, self.down = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(6))


class Halves(nn.Module):
    """Turns the first half of a head's elements against the second."""

    act: Callable[[torch.Tensor], torch.Tensor] = staticmethod(F.silu)
    eps = 1e-5

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def table(self) -> tuple[torch.Tensor, ...]:
        half = SIZE // HEADS // 2
        angles = torch.outer(torch.arange(WORDS).float(), 10.0 ** -torch.arange(half).div(half))
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()

    def turned(self, x: torch.Tensor, table: tuple[torch.Tensor, ...]) -> torch.Tensor:
        one, two = x.chunk(2, -1)
        return x * table[0] + torch.cat((-two, one), -1) * table[1]

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, WORDS, HEADS, SIZE // HEADS).transpose(1, 2)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.table()
        for layer in (layer for layer in self.layers if isinstance(layer, Layer)):
            h = self.norm(x)
            q, k = (self.turned(self.split(linear(h)), table) for linear in (layer.q, layer.k))
            weights = (q @ k.transpose(-1, -2) / SIZE**0.5).softmax(-1)
            x = x + layer.o((weights @ self.split(layer.v(h))).transpose(1, 2).flatten(2))
            x = x + layer.down(self.act(layer.up(self.norm(x))))
        return x


class Complex(Halves):
    """Turns pairs of neighbours: the weights of q and k have their rows in pairs."""

    def __init__(self) -> None:
        super().__init__()
        linears = (one for name, one in self.named_modules() if name.endswith((".q", ".k")))
        for linear in (one for one in linears if isinstance(one, nn.Linear)):
            weight = linear.weight.data.view(HEADS, 2, SIZE // HEADS // 2, SIZE)
            linear.weight.data = weight.transpose(1, 2).reshape(SIZE, SIZE).contiguous()

    def table(self) -> tuple[torch.Tensor, ...]:
        half = SIZE // HEADS // 2
        angles = torch.outer(torch.arange(WORDS).float(), 10.0 ** -torch.arange(half).div(half))
        return (torch.polar(torch.ones_like(angles), angles),)

    def turned(self, x: torch.Tensor, table: tuple[torch.Tensor, ...]) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table[0]).flatten(-2)


class Rooted(Complex):
    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


def port(path: Path, model: Halves) -> Path:
    x = torch.randn(2, WORDS, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return record(path, lambda: model(x), model)


def test_a_port_with_another_rotary_table_agrees(tmp_path: Path) -> None:
    found = compare(port(tmp_path / "target", Rooted()), port(tmp_path / "baseline", Halves()))
    assert found.exit_code == 0, found.answer()


def test_a_wrong_activation_behind_another_rotary_table_is_named(tmp_path: Path) -> None:
    model = Rooted()
    model.act = F.gelu
    found = compare(port(tmp_path / "target", model), port(tmp_path / "baseline", Halves()))
    assert found.exit_code == 1
    assert "Aten.gelu.0.forward (baseline Aten.silu.0.forward)" in found.answer().splitlines()[0]


def test_another_eps_before_another_rotary_table_is_named(tmp_path: Path) -> None:
    model = Rooted()
    model.eps = 1e-1
    found = compare(port(tmp_path / "target", model), port(tmp_path / "baseline", Halves()))
    assert found.exit_code == 1
    assert "Aten.add.0.forward (baseline Aten.add.0.forward)" in found.answer().splitlines()[0], found.answer()
    assert "other is 0.1, in the baseline 1e-05" in found.answer()


# -- experts ------------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    def __init__(self, *, by_sorting: bool = False, divides: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.router = nn.Linear(SIZE, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))
        self.by_sorting, self.divides = by_sorting, divides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        if self.divides:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.by_sorting:
            order = chosen.flatten().argsort(stable=True)
            counts = torch.bincount(chosen.flatten(), minlength=4).tolist()
            parts = x[order // 2].split(counts)
            made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order))
            put_back: torch.Tensor = (made[back].view(-1, 2, SIZE) * weights[..., None]).sum(1)
            return put_back
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            found.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return found


@pytest.mark.parametrize("divides", [True, False])
def test_tokens_that_are_sorted_by_expert_are_no_cause(tmp_path: Path, divides: bool) -> None:
    def run(model: nn.Module) -> Callable[[], None]:
        x = torch.randn(24, SIZE, generator=torch.Generator().manual_seed(2))
        return lambda: model(x).square().mean().backward()

    found = compared(tmp_path, run(Experts(by_sorting=True, divides=divides)), run(Experts()))
    assert found.exit_code == (0 if divides else 1), found.answer()
    if not divides:
        assert "Aten.sum.0.forward of the baseline" in found.answer().splitlines()[0]


# -- which call of several ----------------------------------------------------------------------------------------------


def test_of_calls_given_the_same_the_one_at_the_same_line_is_held_against(tmp_path: Path) -> None:
    noise, weight = torch.randn(2, 8, SIZE), torch.randn(SIZE, SIZE)

    def run(used: int) -> Callable[[], object]:
        def both() -> torch.Tensor:
            first = noise[0] @ weight
            return (noise[used] @ weight).tanh() + first.sigmoid()

        return both

    found = compared(tmp_path, run(0), run(1))
    assert "Aten.select.1.forward (baseline Aten.select.1.forward)" in found.answer().splitlines()[0], found.answer()
    assert "index is 0, in the baseline 1" in found.answer()


def test_two_products_of_other_lines_are_no_other_arguments(tmp_path: Path) -> None:
    weight, grad, old = (torch.randn(SIZE) for _ in range(3))

    def run(*, looks_ahead: bool) -> Callable[[], object]:
        def update() -> torch.Tensor:
            moment = 0.9 * old + grad
            update = grad + 0.95 * moment if looks_ahead else moment
            return weight - 0.01 * update

        return update

    found = compared(tmp_path, run(looks_ahead=False), run(looks_ahead=True))
    assert "of the baseline" in found.answer().splitlines()[0] and "makes no such value" in found.answer(), (
        found.answer()
    )
    assert "0.01" not in found.answer().splitlines()[0]


def test_what_a_read_value_is_on_the_other_side_is_said(tmp_path: Path) -> None:
    done = torch.tensor([0.0, 1.0, 1.0, 0.0])
    rewards = torch.randn(2, 4)

    def run(which: int) -> Callable[[], object]:
        def both() -> torch.Tensor:
            kept = [1 - done, 1 - done.roll(1)]
            return (rewards[0] * kept[which] + rewards[1] * kept[1 - which]).cumsum(0)

        return both

    answer = compared(tmp_path, run(1), run(0)).answer()
    assert "it reads Aten.rsub.1.forward.output.0, the baseline's reads Aten.rsub.0.forward.output.0" in answer, answer


def test_a_write_to_other_rows_is_named_by_its_slice(tmp_path: Path) -> None:
    rows = torch.randn(6, SIZE)

    def run(start: int) -> Callable[[], object]:
        queue = torch.zeros(12, SIZE)
        return lambda: queue[start : start + 6].copy_(rows)

    answer = compared(tmp_path, run(0), run(6)).answer()
    assert "start is 0, in the baseline 6" in answer, answer


def test_an_argument_that_is_not_given_is_its_default(tmp_path: Path) -> None:
    x = torch.randn(8, SIZE)
    answer = compared(tmp_path, lambda: F.leaky_relu(x, 0.01), lambda: F.leaky_relu(x, 0.2)).answer()
    assert "negative_slope is 0.01 (the default), in the baseline 0.2" in answer, answer
