"""Data-parallel training of two processes: the CPU and the device agree, and a skipped all-reduce is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aten_dump import compare
from tests.checkout import ROOT


def trained(path: Path, device: str, *skipped: str) -> Path:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.npu.migration.two_ranks", device, str(path), *skipped]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return path


@pytest.mark.slow
def test_an_all_reduce_that_skips_a_bucket_is_named(tmp_path: Path) -> None:
    baseline = trained(tmp_path / "cpu", "cpu")
    honest = compare(trained(tmp_path / "npu", "npu"), baseline)
    assert honest.exit_code == 0 and len(honest.ranks) == 2, honest.answer()
    found = compare(trained(tmp_path / "skipped", "npu", "1"), baseline)
    assert found.verdict == "different" and found.first is not None
    finding = found.first[1]
    place = finding.row.place
    assert (place.call, place.op) == ("Distributed.allreduce_.1.backward", "c10d::allreduce_"), found.answer()
    assert finding.kind == "op" and "its result is wrong for its inputs" in finding.text
    assert (place.phase, place.module) == ("backward", "module.0")
    path, _, line = place.source.rpartition(":")
    assert ".backward()" in (ROOT / path).read_text().splitlines()[int(line.split()[0]) - 1], place.source
