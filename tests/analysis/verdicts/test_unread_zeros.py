"""Zeros in the dtype of a gradient, which autocast makes on one side alone, and which nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump import compare


def test_zeros_in_the_dtype_of_a_gradient_that_has_no_counterpart(record: Callable[..., Any]) -> None:
    x, w, at = torch.randn(32, 16), torch.randn(16, 3).requires_grad_(), torch.arange(32).view(32, 1) % 3
    goal = torch.randn(32)

    def gathered(enabled: bool, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                y = (x @ w).gather(1, at).squeeze(1)
            torch.nn.functional.smooth_l1_loss(y.float(), goal).backward()
            w.grad = None
            torch.zeros(3, dtype=dtype).add(1)

        return run

    by_autocast, plain = (record(gathered(enabled), data="tensor") for enabled in (True, False))
    assert compare(by_autocast, plain).exit_code == compare(plain, by_autocast).exit_code == 0
    unread = record(gathered(False, torch.float64), data="tensor")
    assert compare(unread, plain).exit_code == 0, "zeros that nobody reads are part of no function"
