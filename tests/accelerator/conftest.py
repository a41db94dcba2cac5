"""These tests name the device of ``--device`` themselves; what names none is made in host memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import devices


@pytest.fixture(autouse=True)
def no_default_device() -> Iterator[None]:
    torch.set_default_device(None)
    yield
    torch.set_default_device(devices.kind())
