"""How much larger a result would be if nothing in its sums cancelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.distance.cancelled_sums import is_sum, times_cancelled

Program = Callable[[], object]
N = 4096
SUMS = ("add", "sub", "index_put", "embedding_dense_backward", "sum", "mean", "mm", "addmm", "convolution_backward")


def times(path: Path, program: Program, op: str, slot: str = "output.0", data: Any = "statistic") -> float:
    """Record a program; return what is said of a result of the last call of an op."""
    with DumpMode(DumpConfig(path, data=data)):
        program()
    call = next(call for call in reversed(open_dump(path).rank(0, 0).calls) if call.op.startswith(f"aten::{op}"))
    assert is_sum(call, slot) == (op in SUMS and slot != "output.1")
    found: float = times_cancelled(call, slot, dict(call.result_values())[slot])
    return found


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("op", "program"), [("sum", torch.Tensor.sum), ("mean", torch.Tensor.mean)])
def test_a_sum_of_which_a_thousandth_is_left(tmp_path: Path, op: str, program: Callable[..., torch.Tensor]) -> None:
    x = torch.cat([torch.ones(N), -torch.ones(N - 1), torch.full((1,), -0.9)])
    left = abs(float(x.double().sum()))
    assert times(tmp_path / "a", lambda: program(x), op) == pytest.approx(math.sqrt(2 * N) / left, rel=1e-3)
    assert times(tmp_path / "b", lambda: program(x.abs()), op) == 1.0


def test_a_product_of_what_is_at_right_angles(tmp_path: Path) -> None:
    x = noise(1, 64)
    y = torch.randn(64, 8)
    y -= x.T @ (x @ y) / x.square().sum()
    assert times(tmp_path / "a", lambda: x @ y, "mm") > 1e4
    assert times(tmp_path / "b", lambda: torch.addmm(torch.zeros(1), x, y), "addmm") > 1e4
    assert times(tmp_path / "c", lambda: x @ x.T, "mm") == 1.0


def test_the_gradient_of_a_bias_before_a_norm(tmp_path: Path) -> None:
    convolution, norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

    def program() -> None:
        (norm(convolution(noise(8, 3, 6, 6))) * noise(8, 4, 4, 4)).sum().backward()

    assert times(tmp_path / "a", program, "convolution_backward", "output.2") > 1e5
    assert times(tmp_path / "b", program, "convolution_backward", "output.1") == 1.0  # its terms cannot be told


def test_a_difference_of_what_is_nearly_equal(tmp_path: Path) -> None:
    x = noise(N)
    assert times(tmp_path / "a", lambda: x - x * 0.99, "sub") == pytest.approx(math.hypot(1, 0.99) / 0.01, rel=1e-3)
    assert times(tmp_path / "b", lambda: x + noise(N).flip(0), "add") == pytest.approx(1.0, abs=0.1)


def test_gradients_that_rows_of_a_table_add_up(tmp_path: Path) -> None:
    """Those of a softmax over neighbours cancel: what is left of them is as exact as they are, not as itself."""
    rows, index = noise(N, 4), torch.arange(N) % 8
    rows -= rows.view(-1, 8, 4).mean(0).repeat(N // 8, 1) * 0.999
    table = torch.nn.Embedding(8, 4)

    def looked_up() -> None:
        (table(index) * rows).sum().backward()

    put = times(tmp_path / "a", lambda: torch.zeros(8, 4).index_put((index,), rows, accumulate=True), "index_put")
    assert put > 100
    assert times(tmp_path / "b", looked_up, "embedding_dense_backward") == pytest.approx(put, rel=1e-3)


def test_what_has_no_statistics_or_is_no_sum_is_not_told(tmp_path: Path) -> None:
    x = torch.cat([torch.ones(N), -torch.ones(N)])
    assert times(tmp_path / "a", lambda: x.sum(), "sum", data="hash") == 1.0
    assert times(tmp_path / "b", lambda: x.sum(), "sum") == 1.0  # zero has no size
    assert times(tmp_path / "c", lambda: x * 2, "mul") == 1.0
    assert times(tmp_path / "d", lambda: x - 1, "sub") == 1.0  # of a number
