"""What the recorder asks of devices: whether a core is left to the writer's thread, and how they compute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.devices import has_spare_core, how_devices_compute

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a program with an accelerator computes there")
def test_threads_of_all_ranks_count(threads: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert callable(threads)
    threads(CORES)
    assert not has_spare_core()
    threads(1)
    assert has_spare_core() == (CORES > 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(CORES))
    assert not has_spare_core()


@pytest.mark.parametrize("count", [1, CORES])
def test_the_dump_is_the_same(threads: object, tmp_path: Path, count: int) -> None:
    assert callable(threads)
    threads(count)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full")):
        x = torch.arange(300_000.0)
        x.add_(1)
        y = x.view(3, -1).t()
        y.contiguous()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert rank.complete
    expected = torch.arange(300_000.0, device="cpu")
    assert torch.equal(rank.tensor("Aten.add_.0.forward.input.0"), expected)
    assert torch.equal(rank.tensor("Aten.t.0.forward.output.0"), (expected + 1).view(3, -1).t())
    assert torch.equal(rank.tensor("Aten.clone.0.forward.output.0"), (expected + 1).view(3, -1).t())


def test_switches_that_decide_numbers_are_in_run_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with DumpMode(DumpConfig(path=tmp_path / "dump")):
            pass
    finally:
        torch.use_deterministic_algorithms(False)
    recorded = open_dump(tmp_path / "dump").run["computing"]
    assert recorded["deterministic"] and recorded["deterministic_warn_only"]
    assert recorded["CUDA_VISIBLE_DEVICES"] == "3,1" and "ASCEND_RT_VISIBLE_DEVICES" not in recorded
    assert recorded["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert how_devices_compute()["deterministic"] is False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_a_gpu_computes_with_is_said() -> None:
    facts = how_devices_compute()
    assert facts["compute_capability"][0] == ".".join(map(str, torch.cuda.get_device_capability(0)))
    assert {"cuda", "cudnn", "matmul_tf32", "conv_tf32", "fp16_reduced_precision_reduction"} <= facts.keys()
