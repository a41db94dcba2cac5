"""A training step on the simulated device: recorded truly, and not changed. Run with `make test-npu`."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 16).to("npu"), torch.randint(0, 4, (8,)).to("npu")


def train(net: nn.Module, dump: DumpMode | None) -> list[float]:
    optimizer, (x, y), losses = torch.optim.AdamW(net.parameters(), lr=1e-2), batch(), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dump is not None:
            dump.step()
    return losses


def test_a_recorded_training_run_is_the_bare_one(tmp_path: Path) -> None:
    bare, recorded = make_net().to("npu"), make_net().to("npu")
    expected = train(bare, None)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full"), model=recorded) as dump:
        assert train(recorded, dump) == expected
    for a, b in zip(bare.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


class Residual(nn.Module):
    """Two gradients meet at its input: the engine adds them up, between nodes, on the device's own thread."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).relu()


def make_residual_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Residual(), Residual(), nn.Linear(16, 4))


@pytest.mark.parametrize("level", ["mix", "aten"])
def test_a_residual_network_is_recorded_and_not_changed(tmp_path: Path, level: Literal["mix", "aten"]) -> None:
    bare, recorded = make_residual_net().to("npu"), make_residual_net().to("npu")
    expected = train(bare, None)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full", level=level), model=recorded) as dump:
        assert train(recorded, dump) == expected
    for a, b in zip(bare.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    rank = open_dump(tmp_path / "dump").step(2).rank(0)
    sums = [call for call in rank.calls if call.op.startswith("aten::add") and call.phase == "backward"]
    assert len(sums) == 2, "one where each residual connection begins"
    assert {call.thread for call in sums} != {0}, "the engine has run them on the device's thread"
    assert [call.name for call in sums if call.forward is None] == []
    assert [call.name for call in rank.calls if call.phase == "forward" and not call.stack] == []


def test_values_links_and_devices(tmp_path: Path) -> None:
    net = make_net().to("npu")
    before = copy.deepcopy(net).cpu()
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full", steps=0), model=net) as dump:
        train(net, dump)
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    weight = rank.value("Functional.linear.0.forward.input.1")
    assert str(weight.device) == "npu:0"
    assert torch.equal(weight.tensor(), before[0].weight)
    backward = [call for call in rank.calls if call.phase == "backward" and call.kind in ("aten", "node")]
    assert backward
    assert [call.name for call in backward if call.forward is None] == []
    gradient = rank.gradients["0.weight"].tensor()
    assert torch.equal(gradient, rank.tensor("Functional.linear.0.backward.output.1"))
    assert rank.gradients["0.weight"].stats.count == gradient.numel()


def test_calls_of_the_package_have_its_prefix(tmp_path: Path) -> None:
    import torch_npu

    x = torch.randn(4, 4).to("npu")
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="structure")):
        torch_npu.npu_format_cast(x, 2)
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert [call.name for call in rank.calls] and all(
        "NPU" in call.name for call in rank.calls if "format" in call.name
    )
    assert any(call.name.startswith("NPU.") for call in rank.calls)


def test_a_dump_can_be_read_where_the_driver_is_missing(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor")):
        torch.ones(3).exp()
    unset = ("LD_LIBRARY_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    bare = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True)
    assert "torch_npu" in bare.stderr  # torch alone does not import here
    program = "import sys, aten_dump; rank = aten_dump.open_dump(sys.argv[1]).step(0).rank(0); "
    program += "print(rank.tensor('Aten.exp.0.forward.output.0').sum().item())"
    read = [sys.executable, "-c", program, str(tmp_path / "dump")]
    found = subprocess.run(read, env=environment, capture_output=True, text=True, check=True)
    assert abs(float(found.stdout) - 3 * math.e) < 1e-5


def test_memory_that_was_given_back_is_not_that_of_who_gets_it(tmp_path: Path) -> None:
    """As FSDP does with what it gathers: a storage is emptied, and has memory elsewhere when it is filled again."""
    gathered = torch.ones(1 << 16, device="npu")
    storage, nbytes, address = gathered.untyped_storage(), gathered.nbytes, gathered.data_ptr()
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full")):
        gathered.mul_(2)
        storage.resize_(0)
        passing = torch.empty(1 << 16, device="npu")
        storage.resize_(nbytes)
        del passing
        blank = torch.empty(1 << 16, device="npu")
        assert blank.data_ptr() == address, "the allocator gives the memory out again"
        gathered.fill_(3)
        blank.fill_(5)
        part = blank[: 1 << 15].clone()
        gathered.add_(part.sum())
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert [storage for storage in rank.tables.storages.records() if storage.memory] == []
    assert torch.equal(rank["Aten.clone.0.forward"].outputs.tensor(), torch.full((1 << 15,), 5.0))
    assert rank["Aten.fill_.0.forward"].outputs.tensor()[0] == 3
