"""config: what each key means, a file of ours from others, one to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aten_dump import ConfigError, DumpConfig
from aten_dump.cli.commands.config import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"path": "dump", "data": "full", "level": "mix", "ops": ["add"]}))
    return path


@pytest.fixture
def msprobe(tmp_path: Path) -> Path:
    path = tmp_path / "msprobe.json"
    path.write_text(
        json.dumps(
            {"task": "statistics", "dump_path": "out", "rank": [], "step": [3], "level": "L1", "async_dump": False}
        )
    )
    return path


def test_check_says_what_is_not_as_by_default(ours: Path) -> None:
    result = run("check", ours)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{ours}: a config of aten_dump"
    assert "  data = 'full'" in lines and "  path = 'dump'" in lines and not any("level" in line for line in lines)


def test_check_says_what_keys_of_others_mean_and_which_have_no_meaning(msprobe: Path) -> None:
    result = run("check", msprobe)
    assert result.exit_code == 0, result.exception
    assert "a config of msprobe" in result.stdout
    assert "  step: " in result.stdout and "async_dump: no meaning here; " in result.stdout


def test_a_wrong_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({"path": "dump", "data": "everything"}))
    result = run("check", tmp_path / "bad.json")
    assert isinstance(result.exception, ConfigError) and "everything" in str(result.exception)
    result = run("convert", tmp_path / "bad.json", "--out", tmp_path / "new.toml")
    assert isinstance(result.exception, ConfigError) and not (tmp_path / "new.toml").exists()


def same(first: DumpConfig, second: DumpConfig) -> bool:
    left: dict[str, Any] = first.as_dict()
    return left == second.as_dict()


def test_convert_writes_the_same_config_with_what_is_lost_as_comments(msprobe: Path, tmp_path: Path) -> None:
    result = run("convert", msprobe, "--out", tmp_path / "new.toml")
    assert result.exit_code == 0
    text = (tmp_path / "new.toml").read_text()
    assert "# async_dump: " in text
    assert same(DumpConfig.from_file(msprobe), DumpConfig.from_file(tmp_path / "new.toml"))
    assert run("convert", msprobe).stdout == text


@pytest.mark.parametrize("what", ["convert", "init"])
def test_no_file_is_written_over(ours: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "there.toml").write_text("mine")
    result = run(what, *([ours] if what == "convert" else []), "--out", tmp_path / "there.toml")
    assert isinstance(result.exception, ConfigError) and "exists already" in str(result.exception)
    assert (tmp_path / "there.toml").read_text() == "mine"


def test_init_is_a_config_that_is_right(tmp_path: Path) -> None:
    assert run("init", "--out", tmp_path / "new.toml").exit_code == 0
    config = DumpConfig.from_file(tmp_path / "new.toml")
    assert (config.path, config.steps, config.data) == ("dump", "0-1", "statistic")
    text = run("init").stdout
    options = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert len(options) > 5
    for line in options:  # each that is offered is right as well
        (tmp_path / "one.toml").write_text(f'path = "dump"\n{line}\n')
        DumpConfig.from_file(tmp_path / "one.toml")


def test_a_field_that_is_null_is_told_and_toml_cannot_say_it(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"path": "dump", "trigger_times": None}))
    assert "  trigger_times = None" in run("check", tmp_path / "c.json").stdout.splitlines()
    assert run("convert", tmp_path / "c.json").stdout.splitlines() == [
        'path = "dump"',
        "# trigger_times = null: TOML has no null; keep it in JSON or YAML",
    ]


def test_an_error_names_the_file_that_the_value_stands_in(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('path = "dump"\nqueue_bytes = "512MB"\n')
    with pytest.raises(
        ConfigError, match=r"^config file .*c\.toml: DumpConfig\.queue_bytes is '512MB'; allowed: an int"
    ):
        DumpConfig.from_file(tmp_path / "c.toml")
