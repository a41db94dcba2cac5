"""DumpConfig: what is allowed, and errors that say so."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, config, open_dump
from aten_dump.errors import AtenDumpError, ConfigError
from tests.checkout import ROOT

WRONG: list[tuple[str, Any, str]] = [
    ("steps", "5-", "0|5-8"),
    ("steps", "8-5", "up"),
    ("steps", "", "all"),
    ("steps", "a", "all"),
    ("steps", "1,2", "|"),
    ("steps", -1, "0"),
    ("steps", [], "non-empty"),
    ("steps", True, "all"),
    ("steps", 1.5, "int"),
    ("ranks", "x", "all"),
    ("ranks", [0, -1], "0"),
    ("level", "op", "mix"),
    ("data", "tensors", "statistic"),
    ("statistics", ["median"], "l2norm"),
    ("statistics", [], "min"),
    ("io", "both", "output"),
    ("hash", "sha1", "sha256"),
    ("on_error", "ignore", "warn"),
    ("ops", ["regex:("], "regular expression"),
    ("ops", [3], "string"),
    ("exclude_ops", ["regex:[a"], "regular expression"),
    ("modules", [""], "string"),
    ("sample", 0, "1"),
    ("sample", "10", "int"),
    ("queue_bytes", -1, "int"),
    ("shard_bytes", 0, "int"),
    ("max_bytes", -5, "0"),
    ("overwrite", "yes", "True"),
    ("stacks", 1, "True"),
    ("path", "", "path"),
    ("dedup", "bytes", "content"),
    ("path", "a\0b", "path"),
    ("path", "hdfs://bucket/run", "a local directory's path"),
    ("path", Path("hdfs://bucket/run"), "a local directory's path"),
    ("path", "file:///tmp/run", "a local directory's path"),
    ("steps", "9" * 30, "18 digits"),
    ("steps", 10**30, "18 digits"),
    ("ranks", "0-" + "9" * 30, "18 digits"),
    ("max_bytes", 10**30, "18 digits"),
    ("trigger_before", 10**18, "18 digits"),
]
TENSORS = (torch.tensor(3), torch.ones(2), torch.ones(2).numpy())


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(DumpConfig) if f.init])
@pytest.mark.parametrize("value", TENSORS, ids=("number", "tensor", "array"))
def test_a_tensor_or_an_array_is_no_field(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"DumpConfig\.{field} is "):
        DumpConfig(**{"path": str(tmp_path), field: value})


def test_what_can_be_iterated_over_once_is_read_once(tmp_path: Path) -> None:
    config = DumpConfig(
        tmp_path,
        steps=(n for n in (3, 5)),
        ranks=iter([0]),
        ops=(name for name in ("add", "mul")),  # type: ignore[arg-type]
    )
    assert (config.steps, config.ranks, config.ops) == ((3, 5), (0,), ("add", "mul"))
    assert 5 in config.step_selection and 4 not in config.step_selection
    assert dataclasses.replace(config) == config


def test_a_long_value_is_shown_in_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        DumpConfig(tmp_path, level="x" * 5000)  # type: ignore[arg-type]
    assert "xxx... (5002 characters); allowed" in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("config", ["dump", 3, {"path": "dump"}])
def test_a_mode_takes_a_config_alone(config: Any) -> None:
    with pytest.raises(ConfigError, match="as its config; allowed: a DumpConfig"):
        DumpMode(config)


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG, ids=lambda v: str(v))
def test_errors_name_field_value_and_what_is_allowed(tmp_path: Path, field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DumpConfig(**{"path": str(tmp_path), field: value})
    message = str(caught.value)
    shown = value if not isinstance(value, list) or len(value) != 1 else value[0]
    assert field in message and repr(shown) in message and allowed in message, message
    assert isinstance(caught.value, AtenDumpError) and isinstance(caught.value, ValueError)


def test_frozen_with_defaults(tmp_path: Path) -> None:
    config = DumpConfig(path=str(tmp_path))
    assert (config.steps, config.ranks, config.level, config.io, config.on_error) == (
        "all",
        "all",
        "mix",
        "all",
        "raise",
    )
    assert config.hash == "xxh3" and config.overwrite is False
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.level = "aten"  # type: ignore[misc]


FILES = {
    "c.json": '{"path": "PATH", "steps": "0|5-8", "level": "aten", "data": "hash", "ops": ["addmm"], "sample": 5}',
    "c.toml": 'path = "PATH"\nsteps = "0|5-8"\nlevel = "aten"\ndata = "hash"\nops = ["addmm"]\nsample = 5\n',
    "c.yaml": 'path: "PATH"\nsteps: 0|5-8\nlevel: aten\ndata: hash\nops: [addmm]\nsample: 5\n',
    "c.yml": '{path: "PATH", steps: "0|5-8", level: aten, data: hash, ops: [addmm], sample: 5}',
}


@pytest.mark.parametrize("name", FILES)
def test_from_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(FILES[name].replace("PATH", str(tmp_path / "d")))
    expected = DumpConfig(path=str(tmp_path / "d"), steps="0|5-8", level="aten", data="hash", ops=("addmm",), sample=5)
    assert DumpConfig.from_file(file) == expected
    assert DumpConfig.from_file(str(file)) == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "a.json"),
        ("a.toml", "= 1", "a.toml"),
        ("a.yaml", "a: [", "a.yaml"),
        ("a.yaml", "path: &a [*a]\n", "nested too deeply"),
        ("a.yaml", "path: d\n7: 1\n", "a field named 7, which is no text"),
        ("a.yaml", "task: statistics\nstatistics: [{2026-11-22: 1}]\n", "a field named datetime.date"),
        ("a.json", "[1]", "a.json"),
        ("a.json", '{"path": "x", "levle": "aten"}', "levle"),
        ("a.json", '{"level": "aten"}', "path"),
        ("a.json", '{"path": "x", "level": "opp"}', "opp"),
        ("a.ini", "", ".ini"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        DumpConfig.from_file(tmp_path / name)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        DumpConfig.from_file(tmp_path / "nowhere.json")


def test_config_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"path": str(tmp_path / "dump"), "level": "aten", "data": "structure"}))
    monkeypatch.setenv("ATEN_DUMP_CONFIG", str(file))
    with DumpMode():
        torch.ones(2).exp()
    assert {c.kind for c in open_dump(str(tmp_path / "dump")).step(0).rank(0).calls} == {"aten"}


def test_no_config_at_all() -> None:
    with pytest.raises(ConfigError, match="ATEN_DUMP_CONFIG"), DumpMode():
        pass
    assert torch._C._len_torch_dispatch_stack() == 0


def test_from_file_is_equal_to_what_the_dump_says(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps="0", sample=3, data="tensor")):
        torch.ones(2).exp()
    stored = json.loads((tmp_path / "dump" / "run.json").read_text())["config"]
    assert (stored["steps"], stored["sample"], stored["data"]) == ("0", 3, "tensor")


def test_the_page_has_each_field_with_its_default_and_what_it_takes() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", page, re.MULTILINE)
    fields = {field.name: field for field in dataclasses.fields(DumpConfig) if field.init}
    assert sorted(name for name, *_ in rows) == sorted(fields)
    for name, default, _ in rows:
        first = re.match(r"`?(\"\w+\"|\(\)|\w+)`?", default)
        assert first, default
        if name not in ("path", "statistics"):
            assert ast.literal_eval(first[1]) == fields[name].default, name
    taken = {name: tuple(re.findall(r'`"?(\w+)"?`', text)) for name, _, text in rows}
    choices = {name: get_args(kind) for name, kind in config._CHOICES}
    assert {name: taken[name] for name in choices} == choices and taken["statistics"] == config.STATISTICS
