"""The guides for users of other recorders: each row of their tables is run, in a folder with what it names."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import aten_dump
from aten_dump import compat
from aten_dump.cli.main import COMMANDS, main
from tests.checkout import ROOT
from tests.export.conftest import Net, record
from tests.torch_features import needs_saved_tensors

GUIDES = sorted((ROOT / "docs" / "guide").glob("from-*.md"))
OVERVIEW = ROOT / "docs" / "guide" / "coming-from-another-recorder.md"
FOREIGN = ROOT / "tests" / "golden" / "foreign"
ROW = re.compile(r"\| (.+) \| `([^`]+)` \|")
CONFIG = '{"task": "statistics", "dump_path": "by-debugger", "rank": [], "step": [], "level": "mix", "statistics": {}}'
DATA_DUMP = (
    '{"common_dump_settings": {"dump_mode": 0, "path": "by-config", "net_name": "Net", "iteration": "0|5-8", '
    '"saved_data": "full", "input_output": 0, "kernels": [], "support_device": [0, 1], "op_debug_mode": 0}}'
)


def test_the_page_on_strangers_dumps_covers_every_command() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"aten-dump {name}`" not in text and f"`{name}`" not in text] == []


def rows(guide: Path) -> Iterator[Any]:
    text = guide.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("| ") and not line.startswith("| you had"):
            match = ROW.fullmatch(line)
            assert match, f"{guide.name}:{number}: a row is | what one had | `what one writes` |"
            needed = needs_saved_tensors if "saved_for_backward" in match[2] else ()
            yield pytest.param(match[2].replace("\\|", "|"), id=f"{guide.stem}:{number}", marks=needed)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    record(folder / "dump", steps=1)
    record(folder / "other", steps=1, fault=0.1)
    return folder


@pytest.fixture
def row(request: pytest.FixtureRequest) -> str:
    """What a test runs; nothing, where it has no row."""
    return str(getattr(request, "param", ""))


@pytest.fixture
def here(row: str, dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with what the row names; `rank` is of `dump`."""
    there = {
        "dump": dumps / "dump",
        "other": dumps / "other",
        "msprobe-dump": FOREIGN / "msprobe" / "mix-tensor",
        "mindspore-dump": FOREIGN / "mindspore",
    }
    for name, folder in there.items():
        if name in row or (name == "dump" and "rank" in row):
            shutil.copytree(folder, tmp_path / name)
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "data_dump.json").write_text(DATA_DUMP)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "")
    return tmp_path


def namespace() -> dict[str, Any]:
    model = Net()

    def train() -> None:
        nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])).backward()

    names: dict[str, Any] = {name: getattr(aten_dump, name) for name in ("DumpConfig", "DumpMode", "open_dump")}
    names |= {name: getattr(compat, name) for name in compat.__all__}
    names |= {
        "model": model,
        "train": train,
        "os": os,
        "h5py": h5py,
        "torch": torch,
        "kernels": types.SimpleNamespace(fused=torch.sin),
    }
    return names


def run_code(code: str) -> Any:
    """Run statements, and return what the last of them is if it is an expression."""
    names = namespace()
    if "rank" in code:
        names["rank"] = aten_dump.open_dump("dump").rank(0, 0)
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "guide", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "guide", "eval"), names)


def run_command(line: str) -> None:
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    assert done.exit_code in (0, 1), done.output  # 1: they differ, or something was found
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.filterwarnings("ignore:.*keys without meaning here")
@pytest.mark.parametrize("row", [row for guide in (*GUIDES, OVERVIEW) for row in rows(guide)], indirect=True)
def test_a_row_runs(row: str, here: Path) -> None:
    try:
        if row.startswith("aten-dump "):
            run_command(row)
        else:
            found = run_code(row)
            if row.startswith(("rank", "open_dump", "[")):
                assert found is not None
                assert not isinstance(found, list | dict) or found
    finally:
        debugger, compat.PrecisionDebugger._instance = compat.PrecisionDebugger._instance, None
        if debugger is not None:
            debugger._close()
        aten_dump.stop_all()


def test_there_are_guides_for_all_of_them() -> None:
    assert [guide.stem for guide in GUIDES] == ["from-apex", "from-hooks", "from-mindspore", "from-msprobe"]
    assert sum(1 for guide in GUIDES for _ in rows(guide)) > 90
    assert sum(1 for _ in rows(OVERVIEW)) == 15


def test_a_row_that_is_wrong_fails(here: Path) -> None:
    with pytest.raises(AssertionError):
        run_command("aten-dump show no-such-dump")
    with pytest.raises(aten_dump.ConfigError):
        run_code('DumpConfig("new", level="L1")')


def test_the_readmes_first_story_is_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "examples" / "first_nan.py", tmp_path)
    story = (ROOT / "README.md").read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "aten_dump", "run", "--path", "dump", "--", sys.executable, "first_nan.py"]
    recorded = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = CliRunner().invoke(main, ["nonfinite", "dump"])
    printed = recorded.stdout + found.stdout.replace(f"{tmp_path}/", "")
    assert (recorded.returncode, found.exit_code) == (0, 1), printed + recorded.stderr
    shown = [line for line in story.splitlines() if not line.startswith("$ ") and line != "..."]
    assert [line for line in shown if line not in printed.splitlines()] == []


@pytest.mark.slow
def test_the_readmes_second_story_is_what_the_example_prints(tmp_path: Path) -> None:
    story = (ROOT / "README.md").read_text(encoding="utf-8").split("```text\n")[2].partition("```")[0]
    command = [sys.executable, str(ROOT / "examples" / "wrong_kernel.py"), str(tmp_path)]
    printed = " ".join(subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout.split())
    parts = " ".join(re.sub(r"(?m)^\$ .*$", "...", story).split()).split("...")
    assert len(parts) > 4
    at = 0
    for part in filter(None, map(str.strip, parts)):
        at = printed.find(part, at) + len(part)
        assert at >= len(part), f"{part!r} is not in {printed}"
