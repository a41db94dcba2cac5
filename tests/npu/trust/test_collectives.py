"""HCCL between two processes over loopback: collectives, and what data and tensor parallel programs make of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.npu.trust.two_ranks import PROGRAMS
from tests.sampling import slow_but_for


@pytest.mark.parametrize("name", slow_but_for(["collectives", "fully_sharded"], PROGRAMS))
def test_two_ranks(name: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.npu.trust.two_ranks", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count(f"{name}: fine") == 2
