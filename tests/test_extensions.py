"""Packages of others add to aten_dump: the one of docs/extending.md is put where it would be installed, and commands use it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aten_dump import DumpConfig, DumpMode
from aten_dump.analysis import composed_ops
from aten_dump.cli.main import main
from aten_dump.extensions import BUILT_IN, CONFIGS, EXPORTS, READERS, REFERENCES, extensions
from tests import forked
from tests.checkout import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', PAGE, re.M | re.S))
GROUPS = tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"]


def forget_references() -> None:
    composed_ops._all_references.cache_clear()
    composed_ops.fused_ops.cache_clear()


def put_package(site: Path, groups: dict[str, dict[str, str]]) -> None:
    """Put what pip would install of the page's package into a folder of modules."""
    info = site / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [
        line for name, group in groups.items() for line in (f"[{name}]", *(f"{k} = {v}" for k, v in group.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (site / "acme.py").write_text(BLOCKS["acme.py"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    put_package(tmp_path / "site", GROUPS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    forget_references()
    yield tmp_path / "site"
    sys.modules.pop("acme", None)
    forget_references()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_pyproject_has_what_a_checkout_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {name: found for name, found in project["entry-points"].items() if name in BUILT_IN} == BUILT_IN
    assert [name for group in BUILT_IN for name, _ in extensions(group)] == [
        n for names in BUILT_IN.values() for n in names
    ]


def test_a_reader_reads_its_format(site: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "calls.acme").write_text("mul 3.5\nadd 7.25\n")
    shown = run("show", tmp_path / "theirs")
    assert shown.exit_code == 0 and "Acme.mul.0.forward" in shown.output, shown.output
    stats = run("stats", tmp_path / "theirs", "--format", "csv")
    assert "7.25" in stats.output, stats.output
    (tmp_path / "neither").mkdir()
    assert "acme (calls.acme)" in run("ls", tmp_path / "neither").output


def test_a_config_is_translated(site: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"acme_folder": "here"}')
    found = run("config", "check", tmp_path / "config.json")
    assert found.exit_code == 0 and "a config of acme" in found.output and "path = 'here'" in found.output, found.output


def recorded(path: Path) -> Path:
    """Record a step with an op of the package's, which is gone when the dump is read."""
    library, given = torch.library.Library("acme", "DEF"), torch.arange(4.0)
    try:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        with DumpMode(DumpConfig(path, data="full")):
            torch.ops.acme.twice(given)
    finally:
        library._destroy()
    return path


def test_a_reference_replays_an_op_that_nobody_has(site: Path, tmp_path: Path) -> None:
    dump = recorded(tmp_path / "dump")
    found = run("replay", dump, "--format", "json")
    assert found.exit_code == 0, found.output
    (replayed,) = json.loads(found.stdout)["replays"]
    assert [(call["op"], call["is_suspect"]) for call in replayed["ops"]] == [("acme::twice", False)], replayed
    assert replayed["skipped"] == []


def test_a_target_is_one_of_export(site: Path, tmp_path: Path) -> None:
    """In a process of its own: a command knows of the targets that were there as it was imported."""
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")):
        torch.ones(2).exp()
    code = f"""
import sys
sys.path.insert(0, {str(site)!r})
from tests.test_extensions import run
print(run("export", *sys.argv[1:], "--help").output)
sys.exit(run("export", *sys.argv[1:]).exit_code)
"""
    arguments = [str(tmp_path / "dump"), "--to", "acme", "--out", str(tmp_path / "names.json")]
    ended = forked.run(["-c", code, *arguments], tmp_path / "said.txt")
    assert ended.code == 0 and "Aten.exp.0.forward" in json.loads((tmp_path / "names.json").read_text()), ended.said
    assert re.search(r"^ +acme +the names of the calls as JSON$", ended.said, re.M)


@pytest.mark.parametrize("group", [READERS, CONFIGS, EXPORTS, REFERENCES])
def test_names_of_ours_are_taken_and_a_broken_package_is_named(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(iter(BUILT_IN[group]))
    put_package(tmp_path / "taken", {group: {first: "acme:nothing"}})
    monkeypatch.syspath_prepend(tmp_path / "taken")
    assert [name for name, _ in extensions(group)] == list(BUILT_IN[group])
    put_package(tmp_path / "broken", {group: {"broken": "acme:nothing"}})
    monkeypatch.syspath_prepend(tmp_path / "broken")
    with pytest.raises(Exception, match=f"acme:nothing, which acme adds to {group}, cannot be imported"):
        list(extensions(group))
