"""What the real msprobe writes, in every task and level, is read here; and its class and ours are interchangeable."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aten_dump import RankDump, Value, compare, open_dump
from aten_dump.compat import PrecisionDebugger
from tests.checkout import ROOT
from tests.other_tools.msprobe.test_precision_debugger import METHODS, signature

SCRIPT = """
import sys
import torch
from torch import nn
from PACKAGE import PrecisionDebugger, seed_all
from tests.export.conftest import Net

seed_all()
debugger = PrecisionDebugger(config_path=sys.argv[1])
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    inputs = torch.randn(3, 4)
    debugger.start(model)
    loss = nn.functional.cross_entropy(model(inputs), torch.tensor([0, 1, 1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
"""
THEIRS, OURS = "msprobe.pytorch", "aten_dump.compat"


def run(package: str, folder: Path, task: str, level: str) -> Path:
    """Run the script with a package's PrecisionDebugger, and return the folder of what it recorded."""
    out = folder / package
    task, _, summary = task.partition("-")
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary or "statistics"}
    config = {"task": task, "dump_path": str(out), "rank": [], "step": [], "level": level, task: section}
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-c", SCRIPT.replace("PACKAGE", package), str(folder / "config.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("task", ["statistics", "statistics-md5", "tensor", "structure"])
def test_every_task_and_level(task: str, level: str, tmp_path: Path) -> None:
    there = run(THEIRS, tmp_path, task, level)
    dump = open_dump(there)
    assert dump.steps == [0, 1]
    for step in dump.steps:
        [folder] = (there / f"step{step}").iterdir()
        rank = dump.step(step).rank(0)
        entries = json.loads((folder / "dump.json").read_text())["data"]
        assert entries or task == "structure"
        for name, entry in entries.items():
            if "parameters_grad" in name:
                assert set(entry) <= {path.rpartition(".")[2] for path in rank.gradients}
            else:
                same_call(rank, name, entry, folder / "dump_tensor_data")
    if task == "structure":
        assert any(call.kind == "module" for call in rank.calls)


def same_call(rank: RankDump, name: str, entry: dict, tensors: Path) -> None:
    call = rank[name] if name in rank else rank[name.replace(".forward", ".optimizer")]
    given = entry.get("input_args", entry.get("input"))
    for items, values in ((given, call.input_values()), (entry["output"], call.output_values())):
        tensors_of = [item for item in items if isinstance(item, dict) and item["type"] == "torch.Tensor"]
        if all(not isinstance(item, list) for item in items):
            for item, (_, value) in zip(tensors_of, values, strict=False):
                same_value(value, item, tensors)


def same_value(value: Value, item: dict, tensors: Path) -> None:
    assert f"torch.{value.dtype_name}" == item["dtype"] and list(value.shape) == item["shape"]
    if item.get("Max") is not None and value.dtype_name == "float32":
        stats = value.stats
        assert [stats.max, stats.min, stats.mean, stats.l2norm] == [item[key] for key in ("Max", "Min", "Mean", "Norm")]
    if "md5" in item:
        assert value.hash == item["md5"]
    if "data_name" in item:
        assert torch.equal(value.tensor(), torch.load(tensors / item["data_name"], weights_only=True))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_one_script_recorded_by_both_agrees(level: str, tmp_path: Path) -> None:
    """Only the import differs; and all that msprobe has recorded is found here by the name that it gave it."""
    there, here = (run(package, tmp_path, "tensor", level) for package in (THEIRS, OURS))
    found = compare(there, here)
    assert found.verdict in ("same", "within"), found.answer()
    theirs, ours = (open_dump(path).step(1).rank(0) for path in (there, here))
    [folder] = (there / "step1").iterdir()
    names = [name for name in json.loads((folder / "dump.json").read_text())["data"] if "parameters_grad" not in name]
    lacking = [name for name in names if name not in ours and name.replace(".forward", ".optimizer") not in ours]
    assert [name for name in lacking if "__add__" not in name] == []
    assert {name.replace("__add__", "add") in ours for name in lacking} <= {True}
    assert set(theirs.gradients) <= set(ours.gradients)


def test_our_class_has_the_methods_and_parameters_of_theirs() -> None:
    from msprobe.pytorch import PrecisionDebugger as Theirs

    methods = {name for name in dir(Theirs) if not name.startswith("_")}
    ours = {name for name in dir(PrecisionDebugger) if not name.startswith("_")}
    assert methods - ours == set(), "all public methods of theirs"
    for name in methods & set(METHODS):
        assert signature(getattr(Theirs, name)) == METHODS[name]
    theirs = list(inspect.signature(Theirs.__init__).parameters)
    assert list(inspect.signature(PrecisionDebugger.__init__).parameters)[: len(theirs)] == theirs
