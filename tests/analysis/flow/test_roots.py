"""What backward is called on: a pass that goes on with what another came to begins at no root of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.flow.roots import roots_of

TOKENS, CHUNK = 24, 8
Backward = Callable[[nn.Module, Tensor, Tensor], None]


def whole(head: nn.Module, hidden: Tensor, labels: Tensor) -> None:
    F.cross_entropy(head(hidden), labels).backward()


def in_two_stages(head: nn.Module, hidden: Tensor, labels: Tensor) -> None:
    cut = hidden.detach().requires_grad_()
    F.cross_entropy(head(cut), labels).backward()
    hidden.backward(cut.grad)


def by_chunks(head: nn.Module, hidden: Tensor, labels: Tensor) -> None:
    cut = hidden.detach().requires_grad_()
    for part, wanted in zip(cut.split(CHUNK), labels.split(CHUNK), strict=True):
        (F.cross_entropy(head(part), wanted, reduction="sum") / TOKENS).backward()
    hidden.backward(cut.grad)


def by_chunks_put_together(head: nn.Module, hidden: Tensor, labels: Tensor, order: int = 1) -> None:
    found = []
    for part, wanted in zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True):
        cut = part.detach().requires_grad_()
        (F.cross_entropy(head(cut), wanted, reduction="sum") / TOKENS).backward()
        found.append(cut.grad)
    hidden.backward(torch.cat(found[::order]))  # type: ignore[arg-type]


def put_together_the_wrong_way(head: nn.Module, hidden: Tensor, labels: Tensor) -> None:
    by_chunks_put_together(head, hidden, labels, -1)


def trained(path: Path, backward: Backward) -> Path:
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16)), nn.Linear(16, 20, bias=False)
    x, labels = torch.randn(TOKENS, 8), torch.randint(20, (TOKENS,))
    with DumpMode(DumpConfig(path, data="full"), model=nn.ModuleDict({"body": body, "head": head})):
        backward(head, body(x), labels)
    return path


@pytest.mark.parametrize("other", [in_two_stages, by_chunks, by_chunks_put_together], ids=lambda item: item.__name__)
def test_a_loss_by_parts_whose_gradient_goes_on_agrees(tmp_path: Path, other: Backward) -> None:
    """The tensor that the last pass starts from was taken for a loss."""
    one = trained(tmp_path / "whole", whole), trained(tmp_path / "parts", other)
    for paths in (one, one[::-1]):
        found = compare(*paths)
        assert found.exit_code == 0, found.answer()


def test_a_gradient_that_was_put_together_the_wrong_way_is_found(tmp_path: Path) -> None:
    found = compare(trained(tmp_path / "wrong", put_together_the_wrong_way), trained(tmp_path / "right", whole))
    assert found.exit_code == 1 and found.cause is not None, found.answer()


@pytest.mark.parametrize(("backward", "count"), [(whole, 1), (in_two_stages, 1), (by_chunks, 3)])
def test_roots_are_what_the_first_passes_begin_at(tmp_path: Path, backward: Backward, count: int) -> None:
    roots = roots_of(open_dump(trained(tmp_path / "dump", backward)).step(0).rank(0))
    assert [root.numel for root in roots] == [1] * count


def test_a_gradient_that_the_program_gives_begins_at_a_root(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(DumpConfig(tmp_path / "dump")):
        (x * 2).backward(torch.ones(3).exp())
    assert [root.numel for root in roots_of(open_dump(tmp_path / "dump").step(0).rank(0))] == [3]
