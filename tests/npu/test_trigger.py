"""A trigger on a device: found without reading a number for each op. Run with `make test-npu`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data.device_copies import copier_of
from aten_dump.capture.trigger.measured import extremes as extremes_module
from tests.checkout import ROOT
from tests.npu.saturating import PROGRAMS
from tests.npu.test_training import batch, make_net
from tests.sampling import every_second

STEPS = 3
DATA = batch()


def train(net: nn.Module, after: Callable[[], object]) -> None:
    optimizer, (x, y) = torch.optim.SGD(net.parameters(), lr=1e-2), DATA  # nothing of it on the CPU
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        after()


def ops_of(net: nn.Module, after: Callable[[], object]) -> Counter[str]:
    """Count the ops of a training run, the recorder's own too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(net, after)
    return Counter({event.key: event.count for event in profile.key_averages()})


def test_no_number_is_read_for_each_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes_module, "MOST_SECONDS", 1e9)
    config = DumpConfig(path=tmp_path / "dump", data="structure", trigger="nonfinite", overwrite=True)
    train(make_net().to("npu"), lambda: None)  # what is found out about an op at its first call takes ops as well
    with DumpMode(config) as dump:
        train(make_net().to("npu"), dump.step)
    bare = ops_of(make_net().to("npu"), lambda: None)
    net = make_net().to("npu")
    with DumpMode(config, model=net) as dump:
        dumped = ops_of(net, dump.step)
    assert dumped["aten::aminmax"] > 100
    assert dumped["aten::item"] == bare["aten::item"]
    assert dumped["aten::to"] - bare["aten::to"] == STEPS, "one copy to the host for all extremes of a step"
    assert open_dump(tmp_path / "dump").steps == []


@pytest.mark.parametrize("pending", [1, 3, 512])
def test_the_window_around_a_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending: int) -> None:
    monkeypatch.setattr(extremes_module, "MOST_PENDING", pending)
    x = torch.ones(4).to("npu")
    config = DumpConfig(path=tmp_path / "dump", data="full", trigger="nonfinite", trigger_before=4, trigger_after=6)
    with DumpMode(config) as dump:
        for _ in range(10):
            x = x + 1
        x = x / torch.zeros(4).to("npu")
        for _ in range(10):
            x = x + 1
        dump.step()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    (note,) = [note.message for note in rank.notes if note.code == "trigger"]
    assert note.startswith("aten::div.Tensor made Inf: call ")
    assert note.endswith("4 calls before it and 6 after it were written")
    division = rank["Aten.div.0.forward"]
    assert torch.isinf(division.outputs.tensor()).all() and division.outputs.stats.posinf == 4
    assert division.inputs[0][0].stats.max == 11 and rank["Aten.add.12.forward"].outputs.stats.max == torch.inf
    assert division.inputs[0][0].tensor().tolist() == [11.0] * 4
    copier = copier_of(x.device)
    assert copier is not None and copier._staged_bytes == 0, "no copy is left on its way to what was not written"
    assert {"Aten.add.10.forward", "Aten.add.11.forward"} <= {call.name for call in rank.calls}
    assert not {"Aten.add.8.forward", "Aten.add.14.forward"} & {call.name for call in rank.calls}


SATURATING = {"can do nothing else": {"NPU_SIM_SOC": "Ascend910A"}, "is told to": {"INF_NAN_MODE_FORCE_DISABLE": "1"}}


@pytest.mark.parametrize("device", every_second(SATURATING))
def test_a_device_that_saturates(tmp_path: Path, device: str) -> None:
    """The mode is one of the process."""
    command = [sys.executable, "-m", "tests.npu.saturating", str(tmp_path)]
    environment = {**os.environ, **SATURATING[device]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    fine = [line.removesuffix(": fine") for line in done.stdout.splitlines() if line.endswith(": fine")]
    assert fine == [program.__name__ for program in PROGRAMS]
