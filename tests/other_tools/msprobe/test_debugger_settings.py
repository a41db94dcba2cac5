"""What a PrecisionDebugger is to record."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

from aten_dump import ConfigError
from aten_dump.other_tools.msprobe.precision_debugger import ConfigSwitch, read_settings


def write(path: Path, **keys: object) -> str:
    path.write_text(json.dumps(keys))
    return str(path)


def test_without_a_config_it_is_msprobes_own() -> None:
    found = read_settings(None, {})
    assert (found.config.path, found.config.level, found.config.data) == ("./dump_path", "api", "statistic")
    assert found.config.overwrite and found.switch is None and not found.saved_only


def test_what_is_given_stands_in_for_the_config(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", task="tensor", dump_path="there", level="L0", step=[1], rank=[0, "2-3"])
    found = read_settings(path, {"task": None, "dump_path": "here", "level": "mix", "step": [4]}).config
    assert (found.path, found.level, found.data, found.steps, found.ranks) == ("here", "mix", "full", "4", "0|2-3")


def test_structure_needs_modules(tmp_path: Path) -> None:
    assert read_settings(None, {"task": "structure"}).config.level == "mix"


def test_debug_records_what_is_saved(tmp_path: Path) -> None:
    assert read_settings(None, {"level": "debug"}).saved_only


def test_errors_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c\.json: dump_enable is 'yes'; msprobe allows: True, False"):
        read_settings(write(tmp_path / "c.json", dump_enable="yes"), {})
    with pytest.raises(ConfigError, match=r"c\.json has unknown keys dumppath"):
        read_settings(write(tmp_path / "c.json", dumppath="x"), {})
    with pytest.raises(ConfigError, match="task is 'dump'; msprobe allows"):
        read_settings(None, {"task": "dump"})


def test_the_config_that_msprobe_brings_warns_of_little(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", task="statistics", dump_path="x", rank=[], step=[], level="L1", extra_info=True,
                 statistics={"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_settings(path, {})


def test_a_switch_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", dump_enable=False)
    switch = ConfigSwitch(path, False)
    assert not switch.is_on()
    write(tmp_path / "c.json", dump_enable=True)
    assert switch.is_on()
    write(tmp_path / "c.json", level="L0", rank=[1])
    assert switch.is_on(), "a key that is taken away leaves it as it was"
    os.remove(path)
    with pytest.warns(UserWarning, match="cannot read config file"):
        assert not switch.is_on()


def test_a_config_without_a_switch_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", level="L0")
    switch = ConfigSwitch(path, None)
    write(tmp_path / "c.json", dump_enable=False)
    assert switch.is_on()
