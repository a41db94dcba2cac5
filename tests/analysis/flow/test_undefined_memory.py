"""Memory that nothing had written, followed byte by byte from call to call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.flow import undefined_memory
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.undefined_memory import UndefinedMemory
from aten_dump.analysis.rerun.undefined_elements import DEPENDS

H = torch.arange(1.0, 13.0).view(6, 2)
M = torch.tensor([True, False, True, False, True, False])


class Told:
    """What is told of the results of the calls of one program."""

    def __init__(self, rank: Any, kind: str = "aten", *, runs: bool = True) -> None:
        self.rank = rank
        self.memory = UndefinedMemory(DataFlow(rank, kind), runs=runs)

    def rows(self, name: str, slot: str = "output.0") -> list[int]:
        """Return the numbers of the rows that are undefined, of a result."""
        found = self.memory.elements(self.value(name, slot))
        return [] if found is None else (found.view(len(found), -1) == DEPENDS).any(-1).nonzero().flatten().tolist()

    def is_guessed(self, name: str) -> bool:
        return self.memory.is_guessed(self.value(name, "output.0"))

    def value(self, name: str, slot: str) -> Any:
        return dict(self.rank[name].result_values())[slot]


@pytest.fixture
def told(record: Callable[..., Any]) -> Callable[..., Told]:
    return lambda body, **options: Told(record(body, **options))


def masked() -> None:
    y = torch.empty_like(H)
    y[M] = H[M]
    y.neg()
    y[~M] = H[~M]
    y.exp()


def test_it_ends_where_the_last_of_it_was_written(told: Callable[..., Told]) -> None:
    seen = told(masked)
    assert seen.rows("Aten.index_put_.0.forward") == seen.rows("Aten.neg.0.forward") == [1, 3, 5]
    assert seen.rows("Aten.index_put_.1.forward") == seen.rows("Aten.exp.0.forward") == []


def test_slices_that_are_copied_count(told: Callable[..., Told]) -> None:
    def body() -> None:
        y = torch.empty(8, 2)
        y[:3] = H[:3]
        y.index_copy_(0, torch.tensor([5, 4]), H[:2])
        y.relu()
        y[6:] = H[:2]
        y[3] = 1.0
        y.relu()

    seen = told(body)
    assert seen.rows("Aten.relu.0.forward") == [3, 6, 7]
    assert seen.rows("Aten.relu.1.forward") == []


def test_views_see_it_through(told: Callable[..., Told]) -> None:
    def body() -> None:
        y = torch.empty_like(H)
        y[M] = H[M]
        turned = y.t()
        turned.exp()
        y[:1].exp(), y[1:3].exp()

    seen = told(body)
    assert seen.rows("Aten.exp.0.forward") == [0, 1], "of each row some"
    assert seen.rows("Aten.exp.1.forward") == []
    assert seen.rows("Aten.exp.2.forward") == [0]


def test_padding_is_undefined_and_what_is_cut_out_of_it_is_not(told: Callable[..., Told]) -> None:
    def body() -> None:
        y = H.new_empty(9, 2)
        y[:6] = H
        F.layer_norm(y, (2,))[:6].sum()
        y.sum()

    seen = told(body)
    assert seen.rows("Aten.native_layer_norm.0.forward") == [6, 7, 8]
    sums = [seen.memory.elements(seen.value(f"Aten.sum.{n}.forward", "output.0")) for n in (0, 1)]
    assert sums[0] is None and sums[1] is not None and sums[1].item() == DEPENDS


def test_memory_that_is_taken_again_is_what_was_written_to_it(told: Callable[..., Told]) -> None:
    def body() -> None:
        y = torch.empty_like(H)
        y[M] = H[M]
        y.copy_(H)
        y.exp()

    assert told(body).rows("Aten.exp.0.forward") == []


def test_what_cannot_be_run_is_guessed(record: Callable[..., Any]) -> None:
    seen = Told(record(masked), runs=False)
    assert seen.rows("Aten.neg.0.forward") == [0, 1, 2, 3, 4, 5]
    assert seen.is_guessed("Aten.neg.0.forward")
    without_bytes = Told(record(masked, data="statistic"))
    assert without_bytes.is_guessed("Aten.neg.0.forward")
    assert not Told(record(masked)).is_guessed("Aten.neg.0.forward")


def test_of_large_memory_it_is_guessed_until_all_of_it_is_written(
    record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        y = torch.empty_like(H)
        y[M] = H[M]
        y.sum()
        y.copy_(H)
        y.exp()

    monkeypatch.setattr(undefined_memory, "_MOST_BYTES", 8)
    seen = Told(record(body))
    assert seen.is_guessed("Aten.index_put_.0.forward") and seen.is_guessed("Aten.sum.0.forward")
    assert seen.rows("Aten.exp.0.forward") == []


def test_of_many_buffers_as_many_are_told_as_fit(record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        y, z = torch.empty_like(H), torch.empty_like(H)
        for filled in (y, z):
            filled[M] = H[M]

    monkeypatch.setattr(undefined_memory, "_MOST_BYTES", H.nbytes)
    seen = Told(record(body))
    assert not seen.is_guessed("Aten.index_put_.0.forward") and seen.is_guessed("Aten.index_put_.1.forward")
    assert seen.rows("Aten.index_put_.0.forward") == [1, 3, 5]


def test_in_a_recording_without_any_nothing_is_run(told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UndefinedMemory, "_follow", lambda *_: pytest.fail("followed"))
    assert told(lambda: H.exp()).rows("Aten.exp.0.forward") == []


def _dispatched(path: Path, seed: int) -> str:
    """Record a dispatch of experts on memory that nobody wrote: how many rows each gets depends on what lies there."""
    torch.manual_seed(0)
    with DumpMode(DumpConfig(path=str(path), data="tensor")):
        scores = torch.empty(40, 4)
        scores.numpy()[...] = np.random.default_rng(seed).random((40, 4))  # by nothing that is seen
        x, weight = torch.randn(40, 4), torch.randn(4, 4)
        (scores > 0.5).nonzero()
        torch.unique((scores * 3).long(), return_counts=True)
        scores[scores > 0.4].sum()
        for expert in range(4):
            (rows,) = torch.where(scores.argmax(1) == expert)
            x.index_add_(0, rows, x[rows] @ weight)
        (weight @ weight).sum()
    return str(path)


def test_a_size_that_depends_on_undefined_memory_is_undefined_too(tmp_path: Path) -> None:
    one, other = (_dispatched(tmp_path / str(seed), seed) for seed in (1, 2))
    found = compare(one, other)
    assert found.verdict != "different", found.answer
    by_call = {row.place.call: row for row in found.rows}
    assert by_call["Aten.mm.4.forward"].status == "same"
    assert by_call["Aten.nonzero.0.forward"].status not in ("different", "same")


class Experts(nn.Module):
    """A layer whose scores choose one expert for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        weights, chosen = scores.softmax(-1).topk(1, -1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            made = made.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
        return made


def test_experts_chosen_by_undefined_scores_are_not_called_wrong(tmp_path: Path) -> None:
    for seed in (1, 2):
        there = torch.randn(64, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(0)
        model, x = Experts(), torch.randn(16, 8)
        with DumpMode(DumpConfig(str(tmp_path / str(seed)), data="tensor"), model=model):
            scores = torch.empty(64)
            ctypes.memmove(scores.data_ptr(), there.data_ptr(), 256)  # what lay in that memory before
            model(x, scores.view(16, 4)).square().mean().backward()
    found = compare(tmp_path / "1", tmp_path / "2")
    assert found.verdict == "incomparable"
    assert found.cause is None


LOOKS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x > 1e30,
    lambda x: x < -1e30,
    lambda x: x == 0.5,
    lambda x: x.view(4, 4).argmax(-1),
    lambda x: x.view(4, 4).argmin(-1),
    lambda x: x.view(4, 4).sort(-1).indices,
    lambda x: torch.unique(x, return_inverse=True)[1],
]


@pytest.mark.parametrize("look", LOOKS)
def test_what_compares_or_orders_undefined_numbers_is_undefined(
    told: Callable[..., Told], look: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    memory = told(lambda: look(torch.empty(16)))
    call = [call for call in memory.rank.calls if call.kind == "aten"][-1]
    found = memory.memory.elements(next(value for _, value in call.result_values() if not value.is_floating))
    assert found is not None and bool((found == DEPENDS).all()), call.name


class Reduced(nn.Module):
    """Adds up what a layer makes over all ranks, here one, and goes on with it: it is waited for where it is read."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor = nn.Linear(2, 4), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as functional
        from torch.distributed import group

        assert group.WORLD is not None
        total = functional.all_reduce(self.layer(x), "sum", group.WORLD)
        return (total.view(-1) * self.factor).exp()


def test_what_a_reduction_brings_is_known_once_it_was_waited_for(tmp_path: Path) -> None:
    """Until then its memory is undefined: what is computed of it after is not."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for name, factor in (("target", 0.7), ("baseline", 0.8)):
            model = Reduced(factor)
            with DumpMode(DumpConfig(path=tmp_path / name, data="tensor"), model=model), torch.no_grad():
                model(H)
    finally:
        dist.destroy_process_group()
    found = compare(tmp_path / "target", tmp_path / "baseline")
    assert found.exit_code == 1, found.answer()
    assert "other is 0.7, in the baseline 0.8" in found.answer()


class Unwritten(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(4, 2) * x[:4]


def test_a_result_that_is_made_of_nothing_agrees_with_none(tmp_path: Path) -> None:
    for name in ("target", "baseline"):
        with DumpMode(DumpConfig(path=tmp_path / name, data="tensor"), model=(model := Unwritten())):
            model(H + (name == "target"))
    found = compare(tmp_path / "target", tmp_path / "baseline")
    assert found.exit_code == 2 and "nobody knows" in found.answer(), found.answer()
