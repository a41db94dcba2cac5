"""What a command is given, and what its processes read of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aten_dump import ConfigError, DumpConfig
from aten_dump.launch.environment import environment_of
from aten_dump.launch.hook.torch_import import VARIABLE


def test_the_config_arrives_with_a_path_that_no_folder_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = DumpConfig(path="dümp", steps="0|5-8", ops=("aten::add",), trigger="nonfinite", max_bytes=3)
    environment = environment_of(config, {"A": "b"})
    monkeypatch.chdir("/")
    found = DumpConfig.from_dict(json.loads(environment[VARIABLE]), VARIABLE)
    assert found.path == str(tmp_path / "dümp")
    assert found.as_dict() == {**config.as_dict(), "path": found.path}
    assert environment["A"] == "b"


def test_the_users_path_stays_behind_ours() -> None:
    config = DumpConfig(path="dump")
    alone, before = environment_of(config, {}), environment_of(config, {"PYTHONPATH": "/mine"})
    assert before["PYTHONPATH"] == f"{alone['PYTHONPATH']}{os.pathsep}/mine"
    assert (Path(alone["PYTHONPATH"]) / "sitecustomize.py").is_file()


def test_a_function_cannot_be_handed_on() -> None:
    with pytest.raises(ConfigError, match="a trigger by name only"):
        environment_of(DumpConfig(path="dump", data="full", trigger=lambda op, stats: True), {})
