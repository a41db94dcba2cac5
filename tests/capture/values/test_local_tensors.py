"""DTensors of simulated ranks: what the recorder asks of them runs no op of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import run

pytest.importorskip("torch.distributed._local_tensor")

PROGRAM = """
import sys, torch, torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.values.distributed_literals import mesh_of
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
with DumpMode(DumpConfig(sys.argv[1], data="full")), LocalTensorMode(2):
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
    assert mesh_of(mesh)["shape"] == [2]
    total = (x + 1).redistribute(mesh, [Replicate()]).to_local().sum()
    assert set(map(float, total._local_tensors.values())) == {36.0}
notes = [note for note in open_dump(sys.argv[1]).rank(0, 0).notes if note.code == "failed"]
assert not notes, notes
"""


def test_dtensors_of_simulated_ranks_are_recorded(tmp_path: Path) -> None:
    ended = run(["-c", PROGRAM, f"{tmp_path}/dump"], tmp_path / "said")
    assert ended.code == 0, ended.said
