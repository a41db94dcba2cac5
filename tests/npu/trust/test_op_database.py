"""PyTorch's op_db on the device and on the CPU: a sample in CI, all of it in `make test-npu-all`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.sampling import every_second

PARTS = 2


def sweep(*options: str, timeout: int) -> None:
    command = [sys.executable, "-m", "tests.npu.trust.op_database", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "'samples'" in done.stdout and done.stdout.endswith("0 problems\n")


@pytest.mark.parametrize("part", every_second(range(PARTS)))
def test_a_sample_of_the_op_database(part: int) -> None:
    sweep("--part", f"{part}/{PARTS}", "--every", "16", "--limit", "2", timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_op_database(part: int) -> None:
    sweep("--part", f"{part}/{PARTS}", "--limit", "6", timeout=1400)
