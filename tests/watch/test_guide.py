"""docs/guide/watch-a-run.md: its code runs, its command has its options, its tables are the code's."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aten_dump.cli.main import main
from aten_dump.watch.alert_rules import AlertRules
from aten_dump.watch.number_formats import FORMATS
from benchmarks.rows import ROWS
from tests.checkout import ROOT

PAGE = (ROOT / "docs" / "guide" / "watch-a-run.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "watch-a-run.md", "exec"), {})
    events = EventAccumulator(str(tmp_path / "runs" / "first"))
    events.Reload()
    assert [point.step for point in events.Scalars("loss")] == [0, 100, 200]


def test_its_commands_have_the_options_that_it_names() -> None:
    (command,) = re.findall(r"^aten-dump run (.*) -- ", PAGE, re.MULTILINE)
    options = {option for one in main.get_command(None, "run").params for option in one.opts}  # type: ignore[arg-type, union-attr]
    assert {word for word in shlex.split(command) if word.startswith("--")} <= options
    (modes,) = re.findall(r"--modes ([a-z,-]+)", PAGE)
    assert set(modes.split(",")) <= set(ROWS)


def test_its_tables_are_those_of_the_code() -> None:
    rules = re.findall(r"^\| `([a-z]+)` \| ", PAGE.partition("## Alerts")[2], re.MULTILINE)
    assert rules == list(AlertRules.__dataclass_fields__)
    formats = PAGE.partition("| `formats=` |")[2].partition("\n\n")[0]
    assert re.findall(r'`"(\w+)"`', formats) == list(FORMATS)
    (limits,) = re.findall(r"`rules=(AlertRules\(.*?\))`", PAGE)
    call = ast.parse(limits, mode="eval").body
    assert isinstance(call, ast.Call) and {word.arg for word in call.keywords} <= set(rules)
