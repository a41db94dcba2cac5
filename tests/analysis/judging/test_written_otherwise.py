"""Programs that write one computation in two ways raise no alarm; the same ways with a bug in them do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aten_dump import compare
from aten_dump.analysis.compare import Comparison

from .steps import record, seeded

Loss = Callable[[nn.ModuleDict], Tensor]


def layers(*names: str) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(8, 4) for name in names})


def compared(tmp_path: Path, target: Loss, baseline: Loss, *names: str) -> Comparison:
    """Train one step of both programs on layers of these names, and compare."""

    def one(name: str, loss: Loss) -> Path:
        model = layers(*names)
        return record(tmp_path / name, lambda step: loss(model).backward(), model)

    return compare(one("target", target), one("baseline", baseline))


# -- what a factory makes ------------------------------------------------------------------------------------------

GROUPS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 1, 3, 4, 2])


def weighted(model: nn.ModuleDict, *, shifted: bool, start: float = 0.0) -> Tensor:
    """A softmax within groups, as graph attention has it."""
    scores = model["a"](seeded(16, 8))[:, 0]
    if shifted:
        most = torch.full((5,), float("-inf")).scatter_reduce(0, GROUPS, scores.detach(), "amax")
        scores = scores - most[GROUPS]
    raised = scores.exp()
    weights = raised / torch.full((5,), start).index_add(0, GROUPS, raised)[GROUPS]
    return (weights * torch.arange(16.0)).square().sum()


def test_sums_into_what_a_factory_made_without_a_dtype_agree(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: weighted(m, shifted=True), lambda m: weighted(m, shifted=False), "a")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("start", [1e-3, 1.0])
def test_sums_that_start_at_another_number_are_found(start: float, tmp_path: Path) -> None:
    found = compared(
        tmp_path, lambda m: weighted(m, shifted=True, start=start), lambda m: weighted(m, shifted=False), "a"
    )
    assert found.exit_code == 1, found.answer()
