"""The real msprobe, in an environment of its own: `make test-peers`. Without it the tests are skipped."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_absent = find_spec("msprobe") is None and os.environ.get("ATEN_DUMP_PEERS") != "required"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1300))  # two processes of msprobe, on a machine that has other work too
            if is_absent:
                item.add_marker(pytest.mark.skip(reason="msprobe is not installed; `make test-peers` does so"))


@pytest.fixture(scope="session")
def msprobe() -> Callable[..., str]:
    """Return what runs msprobe's command and returns what it printed."""

    def run(*arguments: object) -> str:
        command = [str(Path(sys.executable).with_name("msprobe")), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the only CSV file in a folder."""
    [file] = folder.glob("*.csv")
    with open(file, encoding="utf-8-sig", newline="") as opened:
        return list(csv.DictReader(opened))
