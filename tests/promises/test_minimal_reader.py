"""A recording of a real training step reads the same through the package and through the reader of 100 lines."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.store.minimal_reader import Step


def _record(path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    with DumpMode(DumpConfig(path=path, data="full"), model=net):
        loss = nn.functional.cross_entropy(net(torch.randn(2, 3, 6, 6)).bfloat16(), torch.tensor([1, 3]))
        loss.backward()
        optimizer.step()


def test_a_reader_written_from_the_specification_gets_the_same(tmp_path: Path) -> None:
    _record(tmp_path / "dump")
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    own = Step(tmp_path / "dump" / "step0" / "rank0")
    calls = own.calls()
    assert [c["name"] for c in calls] == [call.name for call in rank.calls]
    assert [(c["kind"], c["phase"], c["op"]) for c in calls] == [(c.kind, c.phase, c.op) for c in rank.calls]
    assert len(own.values) == len(rank.values) > 100
    compared = 0
    for value in rank.values:
        found = own.tensor(value.id)
        assert (found is not None) == value.has_data
        if found is not None:
            expected = value.tensor()
            assert found.dtype == expected.dtype and found.stride() == expected.stride()
            assert torch.equal(found.cpu(), expected)
            compared += 1
    assert compared > 100
    shards = own.stock(0)
    assert shards and all(isinstance(tensor, torch.Tensor) for tensor in shards.values())
