"""What works where a part of an NPU is missing, and which part is named. Run with `make test-npu`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode
from tests.checkout import ROOT
from tests.sampling import every_second

READS_AND_COMPARES = """
import sys, aten_dump
from aten_dump import compare, open_dump, replay
from aten_dump.errors import ReplayError
path = sys.argv[1]
assert open_dump(path).step(0).rank(0).tensor("Aten.exp.0.forward.output.0").tolist() == [1.0, 1.0, 1.0]
assert compare(path, path).verdict == "same"
found = replay(path)
assert [op.op for op in found.ops if op.op == "aten::exp"] == ["aten::exp"]
assert not any("it raised" in reason for reason in found.reasons), found.reasons
assert any(op.op == "npu::npu_swiglu" for op in found.ops), "its reference needs no torch_npu"
print("REASONS", *found.reasons, sep="; ")
try:
    replay(path, device="npu")
except ReplayError as error:
    print("DEVICE", error)
"""
MISSING = {  # what the program is started without -> what is said of npu::npu_bmmV2, and of --device npu
    "driver": (
        {"LD_LIBRARY_PATH": None, "TORCH_DEVICE_BACKEND_AUTOLOAD": None},
        "torch_npu registers it, which is installed and was not loaded: that takes its driver (libascendcl.so on "
        "LD_LIBRARY_PATH), but no device; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it",
        "torch_npu is installed and cannot be loaded (libhccl.so: cannot open shared object file: No such file or directory): "
        "is its driver on LD_LIBRARY_PATH?",
    ),
    "device": (
        {"NPU_SIM_DEVICES": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": None},
        "",
        "its driver finds no npu device (see the variables that hide devices, *_VISIBLE_DEVICES); use cpu",
    ),
    "package": (
        {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": None, "TORCH_DEVICE_BACKEND_AUTOLOAD": None},
        "torch_npu registers it, which is not installed here",
        "no package installed here brings it (for npu that is torch_npu)",
    ),
}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("npu") / "dump"
    with DumpMode(DumpConfig(path=path, data="tensor")):
        torch.zeros(3, device="npu").exp()
        torch.ops.npu.npu_swiglu(torch.ones(2, 4, device="npu"))
        torch.ops.npu.npu_bmmV2(*torch.ones(2, 1, 4, 4, device="npu"), [])
    return path


@pytest.mark.parametrize("part", every_second(MISSING))
def test_reading_and_comparing_work_and_the_rest_says_what_is_missing(dump: Path, part: str) -> None:
    changes, of_op, of_device = MISSING[part]
    environment = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
    command = [sys.executable, "-c", READS_AND_COMPARES, str(dump)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert of_op in done.stdout and of_device in done.stdout, done.stdout
    assert ("npu_bmmV2" in done.stdout.partition("DEVICE")[0]) is bool(of_op), done.stdout
