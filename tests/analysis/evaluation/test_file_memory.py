"""Values that memory has no room for lie in files; where even that does not help, no verdict is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode

_COMPARE = """
import resource, sys, torch
import aten_dump
torch.set_num_threads(1)
aten_dump.compare  # what it takes to import is not counted
used = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData:"))) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (int(sys.argv[3]) << 20),) * 2)
if len(sys.argv) > 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
print(aten_dump.compare(sys.argv[1], sys.argv[2]).verdict)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two dumps of the same work, of which 160 MiB are alive at once in float64."""
    home = tmp_path_factory.mktemp("dumps")
    for name in ("target", "baseline"):
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU()) for _ in range(40)]
        model = torch.nn.Sequential(*layers).bfloat16()
        data = torch.randn(4096, 64).bfloat16()
        with DumpMode(DumpConfig(path=home / name, data="tensor"), model=model):
            made = model(data)
            (made.square() if name == "target" else made.pow(2)).mean().backward()
    return home


def _compare(dumps: Path, mebibytes: int, *more: int) -> subprocess.CompletedProcess[str]:
    arguments = [str(dumps / "target"), str(dumps / "baseline"), str(mebibytes), *map(str, more)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "500000"}  # what is freed goes back to the system at once
    return subprocess.run([sys.executable, "-c", _COMPARE, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are the kernel's")
def test_a_step_larger_than_memory_is_evaluated(dumps: Path) -> None:
    done = _compare(dumps, 180)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are the kernel's")
def test_no_verdict_where_memory_runs_out(dumps: Path) -> None:
    done = _compare(dumps, 40)
    assert done.returncode == 1
    assert "verdict" not in done.stdout and not done.stdout
    assert "memory ran out" in done.stderr or "Unable to allocate" in done.stderr or "MemoryError" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are the kernel's")
def test_no_verdict_where_the_disk_has_no_room_either(dumps: Path) -> None:
    done = _compare(dumps, 180, 1 << 20)  # bytes that a file may have
    assert (done.returncode, done.stdout) == (1, "")
    assert "memory ran out" in done.stderr and "nor has" in done.stderr, done.stderr[-2000:]
