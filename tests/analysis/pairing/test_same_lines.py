"""Two versions of a program: an edit moves lines, a copy has another name, and a line is still known."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.pairing.call_keys import line_of
from aten_dump.analysis.pairing.same_lines import name_lines_alike
from aten_dump.analysis.pairing.user_mapping import Mapping
from aten_dump.analysis.tasks import pair_calls

PROGRAM = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        gate = torch.sigmoid(x)
        kept = x.ge(0.1)
        h = torch.tanh(self.up(x))
        y = self.down(h) * gate
        return torch.where(kept, x + y, x)


def climb(weights, by):
    with torch.no_grad():
        for w in weights:
            w.add_(by)


def train(model, x):
    weights = list(model.parameters())
    climb(weights, 0.01)
    loss = model(x).square().mean()
    loss.backward()
    climb(weights, -0.01)
    with torch.no_grad():
        for w in weights:
            w.sub_(w.grad * 0.1)


def build():
    return nn.Sequential(Block(), Block(), Block())
"""


def recorded(folder: Path, name: str, text: str) -> Path:
    """Run a version of the program, and return its dump."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    torch.manual_seed(0)
    model, x = program.build(), torch.randn(5, 6)
    with DumpMode(DumpConfig(path=str(folder / f"{name}.dump"), data="tensor"), model=model):
        program.train(model, x)
    return folder / f"{name}.dump"


def changed(tmp_path: Path, old: str, new: str) -> Comparison:
    """Compare a copy of the program that has another line and some lines more above it."""
    assert old in PROGRAM
    edited = '"""A copy.\n\nOf the program.\n"""\n\n' + PROGRAM.replace(old, new)
    return compare(recorded(tmp_path, "copied", edited), recorded(tmp_path, "program", PROGRAM))


def test_lines_of_a_copy_have_the_names_of_the_lines_that_they_were(tmp_path: Path) -> None:
    edited = PROGRAM.replace("        gate =", "        # more\n        # lines\n        gate =").replace("ge(", "gt(")
    dumps = recorded(tmp_path, "copied", edited), recorded(tmp_path, "program", PROGRAM)
    target, baseline = (open_dump(dump).step(0).rank(0) for dump in dumps)
    pairs = pair_calls(target, baseline, Mapping())
    name_lines_alike(target, baseline, ((pair.target, pair.baseline) for pair in pairs))
    for ours, theirs in (
        ("Aten.sigmoid.0.forward", "Aten.sigmoid.0.forward"),
        ("Aten.where.2.forward", "Aten.where.2.forward"),
        ("Aten.gt.0.forward", "Aten.ge.0.forward"),  # no call of it is paired, and the lines around it are
        ("Aten.sub_.0.forward", "Aten.sub_.0.forward"),
    ):
        assert target[ours].where != baseline[theirs].where
        assert line_of(target[ours]) == line_of(baseline[theirs]) == baseline[theirs].where
    assert line_of(target["Aten.add_.0.forward"]) != line_of(baseline["Aten.sub_.0.forward"])


def test_versions_that_compute_the_same_agree(tmp_path: Path) -> None:
    assert changed(tmp_path, "torch.sigmoid(x)", "x.sigmoid()").exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("    climb(weights, -0.01)\n", "", "w.add_(by)", "the target has no such call: aten::add_"),
        ("x.ge(0.1)", "x.le(0.1)", "kept = x.le(0.1)", "the target computes aten::le.Scalar, the baseline aten::ge.Scalar"),
        ("torch.tanh(self.up(x))", "torch.tanh(self.up(x))[:, :]\n        h = h * 1.02", "h = h * 1.02", "no such call: aten::mul"),
        ("self.down(h) * gate", "self.down(h)", "y = self.down(h) * gate", "the target has no such call: aten::mul"),
    ],
    ids=["a call left out", "another comparison", "a call more", "a factor left out"],
)  # fmt: skip
def test_a_change_of_a_copy_is_named_at_its_line(old: str, new: str, line: str, said: str, tmp_path: Path) -> None:
    found = changed(tmp_path, old, new)
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    place = found.cause.row.target or found.cause.row.baseline
    assert place is not None
    file, _, number = place.source.partition(" in ")[0].rpartition(":")
    assert line in Path(file).read_text().splitlines()[int(number) - 1] or line in PROGRAM.splitlines()[int(number) - 1]
    assert said in found.cause.text, found.answer()
