"""Each key of msprobe's and MindSpore's configs becomes a field, or is named as one without meaning here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aten_dump import ConfigError, DumpConfig
from aten_dump.cli.main import main
from aten_dump.config_files import read_config_file
from aten_dump.other_tools.mindspore import mindspore_keys as mindspore
from aten_dump.other_tools.msprobe import msprobe_keys as msprobe

PATH = {"dump_path": "dump"}
# (key, value in config.json, the fields it sets; None: no meaning here)
MSPROBE: list[tuple[str, Any, dict[str, Any] | None]] = [
    ("task", "statistics", {"data": "statistic"}),
    ("task", "tensor", {"data": "full"}),
    ("task", "structure", {"data": "structure"}),
    ("task", "nan_check", {"trigger": "nonfinite"}),
    ("task", "overflow_check", {"trigger": "nonfinite"}),
    ("task", "acc_check", None),
    ("task", "diff_check", None),
    ("dump_path", "elsewhere", {"path": "elsewhere"}),
    ("rank", [0, "2-4"], {"ranks": "0|2-4"}),
    ("rank", [], {"ranks": "all"}),
    ("step", ["0", 3], {"steps": "0|3"}),
    ("level", "L0", {"level": "module"}),
    ("level", "L1", {"level": "api"}),
    ("level", "L2", {"level": "aten"}),
    ("level", "mix", {"level": "mix"}),
    ("level", "debug", {"level": "api"}),
    ("async_dump", True, None),
    ("precision", "high", None),
    ("dump_enable", True, None),
    ("extra_info", False, {"stacks": False}),
    ("risk_level", "FOCUS", None),
    ("custom_op_namespaces", ["my"], None),
    ("load", {"path": "x"}, None),
    ("is_online", False, None),
    ("seed", 1234, None),
    ("is_deterministic", False, None),
    ("enable_dataloader", False, None),
    ("acl_config", "", None),
]
# The same of the section of a task.
OF_TASK: list[tuple[str, Any, dict[str, Any] | None]] = [
    ("scope", ["Functional.conv2d.1.forward", "Functional.relu.2.forward"], None),
    ("list", ["Functional.linear.0.forward", "relu"], {"ops": ("Functional.linear", "relu")}),
    ("list", ["name-regex(.*norm)"], {"ops": ("regex:.*norm",)}),
    ("list", ["Module.encoder.fc1.Linear.forward.0"], {"modules": ("encoder.fc1",)}),
    ("list", ["Module.encoder."], {"modules": ("encoder",)}),
    ("tensor_list", ["relu"], None),
    ("data_mode", ["all"], {"io": "all"}),
    ("data_mode", ["input"], {"io": "input"}),
    ("data_mode", ["forward", "output"], {"io": "output"}),
    ("summary_mode", "md5", {"data": "hash", "hash": "crc32"}),
    ("summary_mode", "statistics", {"data": "statistic"}),
    ("summary_mode", "xor", {"data": "hash"}),
    ("slice", [{"dim": 0, "begin": 0, "end": 4}], None),
    ("request_id", "a", None),
    ("bench_path", "x", None),
    ("diff_nums", 1, None),
    ("overflow_nums", 1, None),
    ("check_mode", "all", None),
    ("white_list", ["linear"], {"ops": ("linear",)}),
    ("black_list", ["linear"], {"exclude_ops": ("linear",)}),
    ("error_data_path", ".", None),
    ("file_format", "npy", None),
]
MINDSPORE: list[tuple[str, Any, dict[str, Any] | None]] = [
    ("op_debug_mode", 0, {"trigger": None}),
    ("op_debug_mode", 1, {"trigger": "nonfinite"}),
    ("op_debug_mode", 2, {"trigger": "nonfinite"}),
    ("op_debug_mode", 3, {"trigger": "nonfinite"}),
    ("op_debug_mode", 4, None),
    ("dump_mode", 0, {"ops": ()}),
    ("dump_mode", 1, {"ops": ("relu",)}),
    ("dump_mode", 2, None),
    ("path", "/elsewhere", {"path": "/elsewhere"}),
    ("net_name", "ResNet50", {"net_name": "ResNet50"}),
    ("net_name", "", {"net_name": None}),
    ("iteration", "0|5-8|100-120", {"steps": "0|5-8|100-120"}),
    ("iteration", "all", {"steps": "all"}),
    ("saved_data", "tensor", {"data": "tensor"}),
    ("saved_data", "statistic", {"data": "statistic"}),
    ("saved_data", "full", {"data": "full"}),
    ("input_output", 0, {"io": "all"}),
    ("input_output", 1, {"io": "input"}),
    ("input_output", 2, {"io": "output"}),
    ("kernels", ["Default/conv1-Conv2d/Conv2D-op12", "MatMul"], {"ops": ("Conv2D", "MatMul")}),
    ("kernels", ["name-regex(.*Conv.*)"], {"ops": ("regex:.*Conv.*",)}),
    ("support_device", [0, 1, 7], {"ranks": "0|1|7"}),
    ("statistic_category", ["max", "avg", "l2norm"], {"statistics": ("max", "mean", "l2norm")}),
    ("statistic_category", ["md5"], {"data": "hash", "hash": "md5"}),
    ("statistic_category", list(mindspore._STATISTICS), {"hash": "md5"}),
    ("file_format", "npy", None),
    ("overflow_number", 1, None),
    ("initial_iteration", 0, None),
    ("enable", True, None),
    ("trans_flag", True, None),
    ("stat_calc_mode", "device", None),
    ("device_stat_precision_mode", "high", None),
    ("sample_mode", 1, None),
    ("sample_num", 100, {"sample": 100}),
    ("save_kernel_args", True, None),
]


def translated(folder: Path, content: dict[str, Any]) -> tuple[DumpConfig, dict[str, str]]:
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    found = read_config_file(file)
    return DumpConfig.from_dict(found.fields, found.source), found.without_meaning


def check(config: DumpConfig, dropped: dict[str, str], key: str, fields: dict[str, Any] | None) -> None:
    assert (key in dropped) == (fields is None)
    for name, value in (fields or {}).items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(("key", "value", "fields"), MSPROBE)
def test_a_key_of_msprobe(tmp_path: Path, key: str, value: Any, fields: dict[str, Any] | None) -> None:
    check(*translated(tmp_path, {**PATH, key: value}), key, fields)


@pytest.mark.parametrize(("key", "value", "fields"), OF_TASK)
def test_a_key_of_a_task_of_msprobe(tmp_path: Path, key: str, value: Any, fields: dict[str, Any] | None) -> None:
    check(*translated(tmp_path, {**PATH, "task": "statistics", "statistics": {key: value}}), key, fields)


@pytest.mark.parametrize(("key", "value", "fields"), MINDSPORE)
def test_a_key_of_mindspore(tmp_path: Path, key: str, value: Any, fields: dict[str, Any] | None) -> None:
    section = "e2e_dump_settings" if key in mindspore._END_TO_END else "common_dump_settings"
    common = {"path": "dump", "kernels": ["relu"], "dump_mode": 1}
    content = {"common_dump_settings": common, "e2e_dump_settings": {}}
    content[section] = {**content[section], key: value}
    check(*translated(tmp_path, content), key, fields)


def test_every_key_is_tried() -> None:
    assert {key for key, _, _ in MSPROBE} == set(msprobe.KEYS)
    assert {key for key, _, _ in OF_TASK} == set(msprobe._OF_TASK)
    assert {key for key, _, _ in MINDSPORE} == set(mindspore.KEYS)


def test_the_documented_files(tmp_path: Path) -> None:
    """MindSpore's documentation and msprobe's package ship these."""
    theirs = {
        "common_dump_settings": {
            "op_debug_mode": 0,
            "dump_mode": 0,
            "path": "/absolute_path",
            "net_name": "ResNet50",
            "iteration": "0|5-8|100-120",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": ["Default/Conv-op12"],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "statistic_category": ["max", "min", "l2norm"],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True, "stat_calc_mode": "host"},
    }
    config, dropped = translated(tmp_path, theirs)
    assert (config.path, config.steps, config.ops, config.ranks) == (
        "/absolute_path",
        "0|5-8|100-120",
        (),
        "0|1|2|3|4|5|6|7",
    )
    assert set(dropped) == {"enable", "trans_flag", "stat_calc_mode", "kernels"}
    choice = {"scope": [], "list": [], "data_mode": ["all"]}
    theirs = {
        "task": "statistics",
        "dump_path": "./dump_path",
        "rank": [],
        "step": [],
        "level": "L1",
        "extra_info": True,
        "async_dump": False,
        "statistics": {**choice, "summary_mode": "statistics"},
        "tensor": choice,
        "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
    }
    config, dropped = translated(tmp_path, theirs)
    assert (config.level, config.data, config.steps) == ("api", "statistic", "all")
    assert set(dropped) == {"async_dump", "tensor", "acc_check"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**PATH, "levle": "L1"}, "unknown keys levle; msprobe has: task, dump_path"),
        ({**PATH, "level": "L7"}, "level is 'L7'; msprobe allows: 'L0', 'L1'"),
        ({**PATH, "task": ["tensor"]}, r"task is \['tensor'\]; msprobe allows: 'statistics'"),
        ({**PATH, "rank": 3}, "rank is 3"),
        ({**PATH, "task": "statistics", "statistics": {"data_mode": ["sideways"]}}, "data_mode is 'sideways'"),
        ({"task": "statistics"}, "no field 'path'"),
        ({"common_dump_settings": {"path": "x", "input_output": 9}}, "input_output is 9; MindSpore allows: 0, 1, 2"),
        ({"common_dump_settings": {"path": "x", "iteration": "5-3"}}, "steps is '5-3'"),
        ({"common_dump_settings": {}, "other": {}}, "unknown section other"),
    ],
)
def test_wrong_values_say_what_is_allowed(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translated(tmp_path, content)


def test_a_path_that_is_empty_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore appends a folder to the one of the variable."""
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", str(tmp_path))
    for common in ({"path": ""}, {}):
        assert translated(tmp_path, {"common_dump_settings": common})[0].path == str(tmp_path / "debug_dump")
    assert translated(tmp_path, {"common_dump_settings": {"path": "/mine"}})[0].path == "/mine"
    monkeypatch.delenv("MS_DIAGNOSTIC_DATA_PATH")
    with pytest.raises(ConfigError, match=r"path is empty, and MS_DIAGNOSTIC_DATA_PATH is not set"):
        translated(tmp_path, {"common_dump_settings": {"path": ""}})


def test_from_file_warns_of_keys_without_meaning(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PATH, "level": "L0", "async_dump": True}))
    with pytest.warns(UserWarning, match="async_dump: the recorder always writes in the background"):
        assert DumpConfig.from_file(file).level == "module"


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = tmp_path / "data_dump.json", tmp_path / "ours.toml"
    theirs.write_text(json.dumps({"common_dump_settings": {"path": "theirs", "iteration": "3"}}))
    ours.write_text('path = "ours"\n')
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", str(theirs))
    assert DumpConfig.from_environment() == DumpConfig("theirs", steps="3")
    monkeypatch.setenv("ATEN_DUMP_CONFIG", str(ours))
    assert DumpConfig.from_environment().path == "ours"


def test_check(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PATH, "level": "mix", "precision": "high"}))
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 0
    assert "level: level = 'mix'" in done.output and "precision: no meaning here" in done.output
    file.write_text(json.dumps({**PATH, "level": "low"}))
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 2 and "level is 'low'" in done.output


def test_convert_and_init(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "config.json", tmp_path / "ours.toml"
    content = {**PATH, "task": "tensor", "step": [1, "3-4"], "tensor": {"list": ['a"b', "relu"]}, "precision": "high"}
    theirs.write_text(json.dumps(content))
    run = CliRunner().invoke
    assert run(main, ["config", "convert", str(theirs), "--out", str(ours)]).exit_code == 0
    with pytest.warns(UserWarning, match="precision"):
        assert DumpConfig.from_file(ours) == DumpConfig.from_file(theirs)
    assert "# precision: " in ours.read_text()
    assert run(main, ["config", "convert", str(theirs), "--out", str(ours)]).exit_code == 2
    begun = tmp_path / "begun.toml"
    assert run(main, ["config", "init", "--out", str(begun)]).exit_code == 0
    assert DumpConfig.from_file(begun) == DumpConfig("dump", steps="0-1")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("deep.json", '{"path": ' + "[" * 100_000, "is not valid JSON: it is nested too deeply"),
        ("deep.yaml", "path: " + "[" * 5_000, "is not valid YAML: it is nested too deeply"),
        (
            "a.json",
            '{"task": "statistics", "dump_path": "x", "statistics": 5}',
            "statistics is 5; an object is expected",
        ),
        ("a.json", '{"task": ["tensor"], "dump_path": "x"}', "task is ['tensor']"),
    ],
)
def test_what_a_file_holds_is_refused_in_our_words(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        DumpConfig.from_file(tmp_path / name)
    assert said in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"path": "x"}'), ("a.toml", 'path = "x"'), ("a.yml", "path: x")]
)
def test_a_mark_of_the_byte_order_is_no_content(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert DumpConfig.from_file(tmp_path / name).path == "x"
