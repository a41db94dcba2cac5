"""An honest run agrees with one on another kind of processor, whose kernels are others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aten_dump import compare
from tests.checkout import ROOT

# What older processors have: neither AVX-512 nor products of bfloat16.
PROCESSORS = {
    "this one": {},
    "with AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "with SSE": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


@pytest.mark.slow
def test_runs_on_other_processors_agree(tmp_path: Path) -> None:
    for name, environment in PROCESSORS.items():
        command = [sys.executable, "-m", "tests.promises.other_processor", tmp_path / name, tmp_path / "weights.pt"]
        subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    for one, other in (("this one", "with AVX2"), ("with SSE", "with AVX2"), ("with SSE", "this one")):
        found = compare(tmp_path / one, tmp_path / other)
        assert found.verdict in ("same", "within"), f"{one}, {other}: {found.answer()}"
