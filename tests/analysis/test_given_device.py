"""Where ops may be replayed: what is missing is said before the first op runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from aten_dump import ReplayError, replay
from aten_dump.analysis.given_device import usable_device
from aten_dump.cli.main import main

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_devices_that_are_here() -> None:
    assert usable_device("cpu") == usable_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("cuda", "cuda: (torch .* was built without CUDA|its driver finds)", marks=NO_GPU),
        ("tpu", "'tpu', which torch does not know"),
        ("xla", r"no module torch\.xla"),
        ("cpu:x", "torch does not know"),
    ],
)
def test_what_is_missing_is_said(record: Callable[..., Any], name: str, reason: str) -> None:
    rank = record(lambda: torch.ones(3).exp(), data="tensor")
    with pytest.raises(ReplayError, match=reason):
        replay(rank, device=name)


@NO_GPU
def test_the_command_says_it_too(tmp_path: Path, record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.ones(3).exp(), data="tensor")
    result = CliRunner().invoke(main, ["replay", str(rank.directory.parent.parent), "--device", "cuda"])
    assert result.exit_code == 2
    assert "use cpu, or run this where there is one" in result.output
