"""These tests name the GPU themselves; what names none is made in host memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_default_device() -> Iterator[None]:
    torch.set_default_device(None)
    yield
    torch.set_default_device("cuda")
