"""A sample of the sweep over PyTorch's own op_db; `make test-ops` runs all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.devices import here
from tests.sampling import one_in

PARTS = 16


@pytest.mark.parametrize("part", one_in(PARTS, range(PARTS)))
def test_a_sample_of_the_op_database(part: int) -> None:
    """One op in thirty, and all that are known to be special, with two samples each, in every dtype."""
    command = [sys.executable, "-m", "tests.sweep", "--part", f"{part}/{PARTS}", "--every", "30", "--limit", "2"]
    command += ["--device", here().type]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "'samples'" in done.stdout and done.stdout.endswith("0 problems\n")
