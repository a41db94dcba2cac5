from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump.cli.main import main
from tests.dump.scenario import linear_step

Run = Callable[..., Result]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Return a dump of steps 3 and 5, with spaces in its path."""
    root = tmp_path / "my dump"
    for step in (3, 5):
        linear_step(root, step=step).builder.finish()
    (root / "run.json").write_text(json.dumps({"world_size": 1, "versions": {"torch": "2.13.0"}}))
    return root


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Return a dump whose second rank was killed."""
    root = tmp_path / "torn"
    linear_step(root).builder.finish()
    linear_step(root, rank=1).builder.finish(commit=False, torn=b"\xdc\x00")
    return root


@pytest.fixture
def run() -> Run:
    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke
