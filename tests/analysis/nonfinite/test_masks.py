"""Infinities and NaN that are there on purpose, told from those that look like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite.search import NonFinite, find_nonfinite, makes_mask_of_flags


def search(path: Path, program: Callable[[], object], data: str = "statistic") -> NonFinite:
    torch.manual_seed(0)
    with DumpMode(DumpConfig(path=str(path), data=data)):  # type: ignore[arg-type]
        program()
    return find_nonfinite(open_dump(str(path)).rank(0, 0))


FLAGS: dict[str, Callable[[], torch.Tensor]] = {
    "cast": lambda: (torch.arange(4) < 2).float(),
    "whole_numbers": lambda: torch.tensor([1, 0, 1]).to(torch.float64),
    "lower_triangle": lambda: torch.ones(4, 4).tril()[None].expand(2, 4, 4),
    "turned_round": lambda: 1.0 - torch.tensor([True, False]).float(),
}
COMPUTED: dict[str, Callable[[], torch.Tensor]] = {
    "saturated": lambda: torch.tensor([[200.0, -200.0]]).softmax(-1),
    "share_that_is_right": lambda: (torch.arange(4).view(2, 2) < 2).float().mean(1),
    "evenly_spaced": lambda: torch.linspace(0, 1, 5),
    "from_outside": lambda: OUTSIDE + 0,
    "counts": lambda: torch.tensor([0, 3]).float(),
}
OUTSIDE = torch.tensor([0.0, 1.0])


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("name", FLAGS)
def test_a_logarithm_of_flags_is_a_mask(tmp_path: Path, name: str, data: str) -> None:
    found = search(tmp_path / "dump", lambda: (FLAGS[name]().log() + torch.zeros(1)).softmax(-1), data)
    assert found.first is None
    call = open_dump(str(tmp_path / "dump")).rank(0, 0)["Aten.log.0.forward"]
    event = next(event for event in found.masks if event.name == call.name)
    assert makes_mask_of_flags(call, list(event.inputs), list(event.results))


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_logarithm_of_what_was_computed_is_an_error(tmp_path: Path, name: str, data: str) -> None:
    found = search(tmp_path / "dump", lambda: -COMPUTED[name]().log().sum(), data)
    assert found.first is not None and found.first.name == "Aten.log.0.forward"


def test_what_makes_nan_of_a_logarithm_of_flags_is_named(tmp_path: Path) -> None:
    target = torch.tensor([True, False])
    found = search(tmp_path / "dump", lambda: target.float() * target.float().log())
    assert found.first is not None and found.first.name == "Aten.mul.0.forward"


def spoil(gradient: torch.Tensor) -> torch.Tensor:
    return torch.full_like(gradient, float("nan"))


def test_nan_that_the_program_gives_where_a_function_of_torch_calls_it_is_named(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)

    def hook() -> None:
        y = x * 2
        y.register_hook(spoil)
        y.sum().backward()

    def function() -> None:
        loss = torch.nn.functional.triplet_margin_with_distance_loss
        loss(x, x, x, distance_function=lambda one, other: spoil(one))

    for program, name in ((hook, "Aten.full_like.0.backward"), (function, "Aten.full_like.0.forward")):
        found = search(tmp_path / program.__name__, program)
        assert found.first is not None and found.first.name == name


def test_nan_that_the_program_gives_is_named(tmp_path: Path) -> None:
    for number, program in enumerate((lambda: torch.full((2,), float("nan")), lambda: OUTSIDE * float("nan"))):
        found = search(tmp_path / str(number), program)
        assert found.first is not None and found.first.results[0].contents.nan
