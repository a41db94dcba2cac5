"""Every test here runs on one thread, so that sums are the same each time, and records the bytes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.recorded_step import one_thread
from tests.recorded_step import record as record_anything

__all__ = ["one_thread", "record_anything"]


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture
def record(record_anything: Callable[..., Any]) -> Callable[..., Any]:
    return partial(record_anything, data="tensor")
