"""Sparse gradients: an honest run agrees through the optimizer's sparse ops; a wrong row, index or factor is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import compare, open_dump
from tests.analysis.by_distance.steps import record
from tests.analysis.transformer import OtherDevice
from tests.sampling import every_second, slow_but_for

Change = Callable[[Tensor], Tensor]


class Words(nn.Module):
    """Rows of a sparse table, mixed with learned weights."""

    def __init__(self, table: type[nn.Embedding | nn.EmbeddingBag]) -> None:
        super().__init__()
        self.table = table(40, 16, sparse=True)
        self.mix = nn.Linear(16, 8)

    def forward(self, words: Tensor) -> Tensor:
        return self.mix(self.table(words)).tanh().square().mean()


def train(
    path: Path,
    device: OtherDevice | None = None,
    *,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.SparseAdam,
    table: type[nn.Embedding | nn.EmbeddingBag] = nn.Embedding,
    prepare: Callable[[Words], object] = lambda model: None,
    before_step: Callable[[Tensor], object] = lambda gradient: None,
) -> Path:
    torch.manual_seed(0)
    model = Words(table)
    prepare(model)
    optimizers = optimizer([model.table.weight]), torch.optim.SGD(model.mix.parameters(), lr=0.1)

    def step(number: int) -> None:
        for each in optimizers:
            each.zero_grad()
        model(torch.randint(0, 40, (6, 10))).backward()
        assert model.table.weight.grad is not None
        before_step(model.table.weight.grad)
        for each in optimizers:
            each.step()

    return record(path, step, model, steps=2, device=device)


HONEST: dict[str, dict[str, Any]] = {
    "SparseAdam": {},
    "SparseAdam, EmbeddingBag": {"table": nn.EmbeddingBag},
    "Adagrad": {"optimizer": torch.optim.Adagrad},
    "SGD with momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
    "scaled in place": {"before_step": lambda gradient: gradient.mul_(0.5)},
    "scaled through its values": {"optimizer": torch.optim.SGD, "before_step": lambda g: g._values().mul_(0.5)},
}


@pytest.mark.parametrize("case", slow_but_for(["SparseAdam", "Adagrad", "SGD with momentum"], HONEST))
def test_another_order_of_sums_is_no_difference(case: str, tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", OtherDevice(), **HONEST[case]), train(tmp_path / "b", **HONEST[case]))
    assert found.exit_code == 0 and len(found.ranks) == 2, found.answer()
    assert "by distance" not in found.answer()


def test_a_dense_gradient_means_what_the_sparse_one_means(tmp_path: Path) -> None:
    def dense(model: Words) -> None:
        model.table.sparse = False

    ways = [train(tmp_path / str(way), optimizer=torch.optim.SGD, prepare=way) for way in (dense, lambda model: None)]
    for target, baseline in (ways, ways[::-1]):
        found = compare(target, baseline)
        assert found.exit_code == 0, found.answer()


def with_values(sparse: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(
        indices, values, sparse.shape, is_coalesced=sparse.is_coalesced(), check_invariants=False
    )


def wrong_row(sparse: Tensor) -> Tensor:
    values = sparse._values().clone()
    values[3] *= 1.01
    return with_values(sparse, sparse._indices(), values)


def wrong_index(sparse: Tensor) -> Tensor:
    indices = sparse._indices().clone()
    indices[0, 3] = (indices[0, 3] + 1) % 40
    return with_values(sparse, indices, sparse._values())


MAKES = "aten::_sparse_coo_tensor_with_dims_and_tensors"
WRONG_OPS: dict[str, tuple[str, int, Change, str]] = {
    "a row of the gradient": (MAKES, 0, wrong_row, "backward"),
    "an index of the gradient": (MAKES, 0, wrong_index, "backward"),
    "a row of the sum": ("aten::_coalesce", 0, wrong_row, "optimizer"),
    "a row of the second step": (MAKES, 1, wrong_row, "backward"),
}


@pytest.mark.parametrize("case", slow_but_for(["an index of the gradient", "a row of the second step"], WRONG_OPS))
def test_an_op_that_is_wrong_for_its_inputs_is_the_cause(case: str, tmp_path: Path) -> None:
    op, step, change, phase = WRONG_OPS[case]
    baseline = train(tmp_path / "b")
    first = sum(call.op == op for n in range(step) for call in open_dump(baseline).step(n).rank(0).calls)
    found = compare(train(tmp_path / "t", OtherDevice({(op, first): change})), baseline)
    assert found.cause is not None and found.cause.kind == "op", found.answer()
    place = found.cause.row.place
    assert (place.op, place.step, place.phase) == (op, step, phase)


WRONG_PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "another eps": ({"optimizer": lambda p: torch.optim.SparseAdam(p, eps=1e-6)}, "argument"),
    "a hook that scales": (
        {"prepare": lambda model: model.table.weight.register_hook(lambda gradient: gradient * 1.01)},
        "region",
    ),
    "scaled in place": ({"before_step": lambda gradient: gradient.mul_(1.01)}, "region"),
    "scaled through its values": ({"before_step": lambda gradient: gradient._values().mul_(1.01)}, "region"),
}


@pytest.mark.parametrize("case", every_second(WRONG_PROGRAMS))
def test_a_program_that_is_wrong_is_found(case: str, tmp_path: Path) -> None:
    options, kind = WRONG_PROGRAMS[case]
    found = compare(train(tmp_path / "t", OtherDevice(), **options), train(tmp_path / "b"))
    assert found.cause is not None and found.cause.kind == kind, found.answer()
