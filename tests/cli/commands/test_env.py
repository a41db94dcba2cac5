"""env: versions, devices and variables, and no variable that is nobody's business."""

from __future__ import annotations

import platform

import pytest
import torch
from click.testing import CliRunner

from aten_dump import __version__
from aten_dump.cli.commands.env import command


def test_it_says_versions_and_variables_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_DUMP_CONFIG", "/etc/dump.toml")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("ATEN_DUMP_RUN", "{}")  # the configuration, as `run` hands it on: a dump has it anyway
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    result = CliRunner().invoke(command)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"aten_dump {__version__} (") and f"Python {platform.python_version()}" in lines[1]
    assert f"torch {torch.__version__}" in lines and "ATEN_DUMP_CONFIG=/etc/dump.toml" in lines and "RANK=3" in lines
    assert "hunter2" not in result.stdout and "ATEN_DUMP_RUN" not in result.stdout
    assert sum(line.startswith("accelerator: ") for line in lines) == 1


def test_a_package_that_is_not_there_is_said_to_be_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from aten_dump.cli.commands import env

    monkeypatch.setattr(env, "_PACKAGES", ("numpy", "no-such-package-here"))
    lines = CliRunner().invoke(command).stdout.splitlines()
    assert "no-such-package-here not installed" in lines and "numpy not installed" not in lines
