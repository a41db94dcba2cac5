"""Run a program bare and recorded, and compare every bit that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.capture.bits import assert_same
from tests.devices import random_states
from tests.models import seed_all

Record = Callable[..., Any]
Program = Callable[[], list[Tensor]]


def twice(record: Record, program: Program, model: torch.nn.Module | None = None, **config: Any) -> Any:
    """Run `program` bare, then recorded, from the same seed; it makes its own tensors and returns all that it leaves.

    Returns:
        The RankDump, after results and RNG streams were found bitwise equal.
    """
    seed_all(5)
    program()  # first calls of some kernels differ from later ones, see MKL's start-up
    seed_all(5)
    bare = [tensor.detach().clone() for tensor in program()] + random_states()
    seed_all(5)
    left: list[Tensor] = []
    rank = record(lambda: left.extend(program()), model, **{"data": "tensor", **config})
    left.extend(random_states())
    assert len(bare) == len(left)
    for number, (expected, found) in enumerate(zip(bare, left, strict=True)):
        assert_same(expected, found, f"result {number}")
    return rank
