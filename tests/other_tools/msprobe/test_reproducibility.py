"""msprobe's seed_all."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from aten_dump.compat import seed_all


@pytest.fixture(autouse=True)
def all_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("dropout", "dropout2d", "dropout3d"):
        monkeypatch.setattr(functional, name, getattr(functional, name))
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield
    torch.use_deterministic_algorithms(False)


def numbers() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_the_same_seed_the_same_numbers() -> None:
    seed_all()
    first = numbers()
    seed_all(seed=1)
    assert numbers() != first
    seed_all(1234)
    assert numbers() == first


def test_mode_asks_for_deterministic_algorithms() -> None:
    seed_all(mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    seed_all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_dropout_drops_nothing_where_that_is_asked_for() -> None:
    ones = torch.ones(1, 4, 4, 4)
    seed_all(rm_dropout=True)
    for layer in (nn.Dropout(0.9), nn.Dropout2d(0.9)):
        assert torch.equal(layer(ones), ones)
    assert torch.equal(functional.dropout(ones, p=0.9, training=True), ones)
