"""What was read last is given again to who does not write to it, within a bound, and never to who may write."""

from __future__ import annotations

import pytest
import torch

from aten_dump.dump import open_dump
from aten_dump.dump.tensors import recent_tensors
from aten_dump.dump.tensors.recent_tensors import RecentTensors
from tests.dump.building import Builder


def test_a_value_is_read_once_by_those_who_do_not_write(builder: Builder) -> None:
    number = builder.value(torch.arange(6.0).reshape(2, 3))
    value = open_dump(builder.finish()).rank(0, 0).value_by_id(number)
    shared = value.shared_tensor()
    assert value.shared_tensor() is shared and torch.equal(shared, torch.arange(6.0).reshape(2, 3))
    value.tensor().zero_()
    assert torch.equal(value.shared_tensor(), torch.arange(6.0).reshape(2, 3)), "tensor() has memory of its own"


def test_the_oldest_go_and_large_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_tensors, "KEPT_BYTES", 40_000)
    recent = RecentTensors()
    read: list[int] = []

    def get(id: int, nbytes: int) -> None:
        def load() -> torch.Tensor:
            read.append(id)
            return torch.zeros(nbytes, dtype=torch.uint8)

        assert recent.get(id, load).numel() == nbytes

    for id in (1, 2, 3, 4, 4, 1):
        get(id, 8_000)
    assert read == [1, 2, 3, 4]
    get(5, 8_000)  # the first goes
    for id in (2, 5, 1):
        get(id, 8_000)
    assert read == [1, 2, 3, 4, 5, 1]
    get(6, 20_000)
    get(6, 20_000)
    assert read[-2:] == [6, 6]


def test_sparse_tensors_are_read_each_time() -> None:
    recent = RecentTensors()
    sparse = torch.eye(3).to_sparse()
    assert recent.get(1, lambda: sparse) is sparse
    assert recent.get(1, lambda: sparse.clone()) is not sparse
