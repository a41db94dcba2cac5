"""Each dump says what it could not see: as notes of the step, in `aten-dump ls` and in run.json."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.unseen import Coverage
from aten_dump.cli.main import main
from tests.capture.bits import calls
from tests.capture.children import kill, started
from tests.capture.same_outcome import note
from tests.torch_features import needs_saved_tensors


def _dump(path: Path, body: Any, **config: Any) -> Any:
    with DumpMode(DumpConfig(path=str(path), **config)) as dump:
        body()
        dump.step()
    return open_dump(str(path)).step(0).rank(0)


def _train() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize(
    "selection", [{"level": "api"}, {"ops": ("addmm",)}, {"exclude_ops": ("aten::t",)}, {"modules": ("1",)}]
)
def test_calls_left_out_are_counted(tmp_path: Path, selection: dict[str, Any]) -> None:
    whole = _dump(tmp_path / "whole", _train)
    part = _dump(tmp_path / "part", _train, **selection)

    found = note(part, "selection")
    assert found.count == len(whole.calls) - len(part.calls) > 0
    assert f"{next(iter(selection))}=" in found.message
    assert not [n for n in whole.notes if n.code == "selection"]


def test_a_whole_dump_of_a_plain_program_has_no_notes(tmp_path: Path) -> None:
    rank = _dump(tmp_path / "dump", _train)
    assert rank.notes == []
    run = json.loads((tmp_path / "dump" / "run.json").read_text())
    assert run["coverage"] == {"rank": 0, "steps": 1, "notes": {}}


def test_modules_of_a_thread_without_the_mode(tmp_path: Path) -> None:
    def body() -> None:
        thread = threading.Thread(target=nn.Tanh(), args=(torch.ones(2),))
        thread.start()
        thread.join()

    rank = _dump(tmp_path / "dump", body)
    assert note(rank, "other_threads").count == 1
    assert "Tanh" in note(rank, "other_threads").message
    assert not calls(rank, op="aten::tanh")


@needs_saved_tensors
def test_saved_tensors_under_the_users_hooks(tmp_path: Path) -> None:
    def body() -> None:
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            x.exp().sum().backward()

    assert note(_dump(tmp_path / "dump", body), "saved_hooks").count >= 1


def test_run_json_and_ls_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with DumpMode(DumpConfig(path=str(path), level="aten")) as dump:
        for _ in range(2):
            torch.func.vmap(torch.tanh)(torch.ones(2, 3))
            dump.step()
    steps = [open_dump(str(path)).step(step).rank(0) for step in (0, 1)]
    run = json.loads((path / "run.json").read_text())
    assert run["coverage"]["rank"] == 0
    assert run["coverage"]["steps"] == 2
    for code in ("selection", "wrapped_tensors"):
        assert run["coverage"]["notes"][code] == sum(note(rank, code).count for rank in steps)
    assert run["config"]["compile"] == "eager"
    shown = CliRunner().invoke(main, ["ls", str(path)])
    assert shown.exit_code == 0, shown.output
    for rank in steps:
        assert note(rank, "selection").message in shown.output.replace("\n", " ")


def test_a_killed_dump_keeps_its_run_json_and_says_nothing_of_what_was_not_seen(tmp_path: Path) -> None:
    """What was not seen is counted to the end of a run: a run without its end has no count."""
    path = tmp_path / "dump"
    kill(started(INTERRUPTED.format(path=str(path)), "in the second step", tmp_path / "said"))
    run = json.loads((path / "run.json").read_text())
    assert run["config"]["level"] == "api"
    assert "coverage" not in run
    assert open_dump(path).run == {key: item for key, item in run.items() if key != "checksum"}


INTERRUPTED = """
import time
import torch
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path={path!r}, level="api")) as dump:
    torch.ones(2).exp()
    dump.step()
    torch.ones(2).exp()
    print("in the second step", flush=True)
    time.sleep(60)
"""


def test_counts_are_told_by_code_with_the_first_few_names() -> None:
    coverage = Coverage()
    for name in ("b", "a", "b", *"cdefg"):
        coverage.add("custom_ops", name, 2)
    coverage.add("traced")
    custom, traced = coverage.notes()
    assert (custom.code, custom.count, traced.code, traced.count) == ("custom_ops", 16, "traced", 1)
    assert custom.message.endswith("as one call each: b, a, c, d, e, ...") and custom.message.startswith("16 calls")
    coverage = Coverage()
    for name in "abcde":
        coverage.add("custom_ops", name)
    assert coverage.notes()[0].message.endswith(": a, b, c, d, e")


def test_what_was_counted_back_to_nothing_is_not_told() -> None:
    coverage = Coverage()
    coverage.add("selection", "level='api'", 0)
    assert coverage.notes() == []
    coverage.add("selection")
    coverage.add("selection", count=-1)
    assert coverage.notes() == []
    coverage.add("selection")
    assert coverage.notes()[0].message == "1 calls were left out by the configuration: level='api'"
