"""No op makes the host wait, or moves data, on the recorder's account. Run with `make test-npu`."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import device_batches, keeper
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.capture.trigger.measured import extremes
from aten_dump.store.writing import writer_thread
from tests.models import build, train_step
from tests.npu.simulator import device

FEW = ("count", "min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
COUNT = 200


def caller() -> str:
    """Return which file of ours made the host wait or data move; "" where the program's own op did."""
    if threading.current_thread().name.startswith("aten_dump"):
        return ""
    frame: Any = sys._getframe(2)
    while frame is not None:
        _, found, name = frame.f_code.co_filename.partition("/aten_dump/")
        if found:
            return "" if name.endswith("intercept/torch_modes.py") else name
        frame = frame.f_back
    return ""


def counts_of(path: Path, steps: int, **config: Any) -> Counter[str]:
    """Return what the recorder did on the program's threads in some steps of a training run."""
    with torch.device("npu"):
        program = build("gpt2", "adamw_foreach")
        train_step(program)
        with DumpMode(DumpConfig(path=path, **config), model=program.model) as dump, device.counted(caller) as counts:
            for _ in range(steps):
                train_step(program)
                dump.step()
    return Counter({f"{what} by {by}": count for (what, by), count in counts.items() if by})


@pytest.mark.parametrize("data", ["statistic", "hash", "full"])
def test_no_op_makes_the_host_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    """All that is done on the program's threads is to begin copies: one for a batch of results, one for a blob."""
    monkeypatch.setattr(writer_thread, "INTERVAL_SECONDS", 60.0)  # the writer's thread asks for none that is not full
    counts = counts_of(tmp_path / "dump", 2, data=data)
    copies = counts.pop("device to host by capture/data/device_copies.py")
    assert counts == {}
    ranks = list(open_dump(tmp_path / "dump").all_ranks())
    blobs = sum(len(rank.values) for rank in ranks)
    assert 1 <= copies <= (sum(len(rank.calls) for rank in ranks) // 50 if data == "statistic" else blobs)


@pytest.mark.parametrize("data", ["structure", "statistic"])
def test_a_trigger_waits_once_for_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    monkeypatch.setattr(extremes, "MOST_SECONDS", 1e9)
    monkeypatch.setattr(extremes, "MOST_PENDING", 4096)
    monkeypatch.setattr(keeper, "DEVICE_VALUES", 4096)
    counts = counts_of(tmp_path / "dump", 2, data=data, trigger="nonfinite")
    copies = {"capture/data/device_copies.py"} if data == "statistic" else set()
    assert {name.partition(" by ")[2] for name in counts} == {"capture/trigger/measured/extremes.py"} | copies, counts
    assert max(counts.values()) <= 4


@pytest.mark.parametrize("std", [False, True])
def test_a_batch_of_values_is_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, std: bool) -> None:
    """400 values: one copy to the host, and no number is read on the program's thread."""
    # Nothing else may send the batch meanwhile.
    monkeypatch.setattr(device_batches.DeviceBatches, "tick", lambda self: None)
    xs = [torch.randn(50).to("npu") for _ in range(COUNT)]  # fewer values than a batch
    names = (*FEW, "std") if std else FEW
    with device.counted() as counts:
        config = DumpConfig(path=tmp_path / "dump", level="aten", stacks=False, data="statistic", statistics=names)
        with DumpMode(config) as dump:
            for x in xs:
                x.neg()
            dump.step()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert {what: counts[what, ""] for what in ("device to host", "kernel that needs the host")} == {
        "device to host": 1,
        "kernel that needs the host": 0,
    }
    for x, call in zip(xs, [c for c in rank.calls if c.op == "aten::neg"], strict=True):
        for tensor, value in ((x.cpu(), call.inputs[0][0]), (-x.cpu(), call.outputs)):
            expected = dict(zip(names, compute(tensor, names), strict=True))
            assert {name: pytest.approx(n, rel=1e-5, abs=1e-6) for name, n in expected.items()} == dict(value.stats)
