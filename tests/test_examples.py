"""Every file in examples/ runs, in a fresh interpreter, and says something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.sampling import slow_but_for

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = [ROOT / "examples" / f"{name}.py" for name in ("quickstart",)]


@pytest.mark.parametrize("example", slow_but_for(QUICK, EXAMPLES), ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path / "a dump")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_shows(example: Path) -> None:
    source = example.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 60
    assert source.startswith('"""')


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 12
