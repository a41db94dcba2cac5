"""Every test here runs on one thread, so that sums are the same each time, and records the bytes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump.dump import Call
from tests.analysis.by_hand import one_call
from tests.recorded_step import one_thread
from tests.recorded_step import record as record_anything

__all__ = ["one_thread", "record_anything"]


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture
def record(record_anything: Callable[..., Any]) -> Callable[..., Any]:
    return partial(record_anything, data="tensor")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Call]:
    """Return a function that makes a call of an op, its arguments and its results; each in a dump of its own."""
    numbers = count()

    def call(op: str, given: Any, *results: torch.Tensor, **options: Any) -> Call:
        return one_call(tmp_path / str(next(numbers)), op, given, results, **options)

    return call
