"""Repeat: ops run several times from their recorded inputs; whose bits are not the same twice is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import ConfigError, MissingDataError
from aten_dump.analysis.repeat import is_documented, repeat
from aten_dump.cli.main import main
from tests.checkout import ROOT
from tests.models import build, train_step

LIBRARY = "aten_dump_unsteady"
_calls = iter(range(1 << 30))


@pytest.fixture(scope="module")
def noisy() -> Iterator[Any]:
    """An op whose third run, and each third after it, has one wrong element: as a kernel with a race has."""
    library = torch.library.Library(LIBRARY, "DEF")
    library.define("scale(Tensor x) -> Tensor")

    def scale(x: torch.Tensor) -> torch.Tensor:
        result = x * 2
        if next(_calls) % 3 == 2:
            result.view(-1)[1] += 0.125
        return result

    library.impl("scale", scale, "CPU")
    yield getattr(torch.ops, LIBRARY).scale
    library._destroy()


def step(record: Callable[..., Any], op: Callable[[Any], Any]) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    return record(lambda: op(model(torch.ones(3, 4)).detach()), model)


@pytest.mark.parametrize("name", ["resnet", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_honest_ops_are_steady_random_ones_too(name: str, record: Callable[..., Any]) -> None:
    program = build(name)
    rank = record(lambda: train_step(program), program.model)
    found = repeat(rank, 3)
    assert not found.unsteady and found.ops > 50 and found.times == 3
    assert {one.phase for one in found.skipped} <= {"forward", "backward", "optimizer"}


def test_an_op_with_a_race_is_named(noisy: Any, record: Callable[..., Any]) -> None:
    rank = step(record, noisy)
    found = repeat(rank, 6, allow_ops=[f"{LIBRARY}::*"])
    (op,) = found.unsteady
    assert op.op == f"{LIBRARY}::scale" and op.slot == "output.0" and not op.documented
    assert (op.elements, op.numel, op.greatest) == (1, 12, 0.125) and 2 <= op.run <= 4
    assert "test_repeat.py" in op.source and found.guilty == found.unsteady
    left_out = repeat(rank, 2)
    assert not left_out.unsteady and any(one.op == f"{LIBRARY}::scale" for one in left_out.skipped)


def test_ops_that_are_documented_are_known() -> None:
    for op in (
        "aten::index_add_",
        "aten::scatter_add",
        "aten::cumsum",
        "aten::convolution_backward",
        "aten::_ctc_loss_backward",
    ):
        assert is_documented(op)
    assert not any(
        map(is_documented, ("aten::mm", "aten::add.Tensor", "aten::_ctc_loss", "aten::native_layer_norm_backward"))
    )


def test_what_cannot_be_repeated_is_an_error(record_anything: Callable[..., Any]) -> None:
    rank = record_anything(lambda: torch.ones(2) + 1, data="statistic")
    with pytest.raises(MissingDataError, match='replay needs data="tensor" or "full"'):
        repeat(rank)
    with pytest.raises(ConfigError, match="times=1; allowed: a whole number from 2 on"):
        repeat(rank, 1)


def test_the_command_and_its_json(noisy: Any, record: Callable[..., Any]) -> None:
    path = str(step(record, noisy).directory.parent.parent)
    allowed = ["--allow-ops", f"{LIBRARY}::*"]
    text = CliRunner().invoke(main, ["replay", path, "--repeat", "6", *allowed])
    assert text.exit_code == 1
    assert "1 of them is not deterministic" in text.output and "1 of 12 elements differ" in text.output
    found = CliRunner().invoke(main, ["replay", path, "--repeat", "6", "--format", "json", *allowed])
    schema = json.loads((ROOT / "docs" / "json" / "replay-repeat.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(found.stdout), schema)
    steady = CliRunner().invoke(main, ["replay", path, "--repeat", "2", "Module.0.0.forward"])
    assert steady.exit_code == 0 and "all gave the same bits" in steady.output
    assert CliRunner().invoke(main, ["replay", path, "--repeat", "2", "--all"]).exit_code == 2


def test_the_code_of_the_page_runs(noisy: Any, record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rank = step(record, noisy)
    rank.directory.parent.parent.rename(rank.directory.parent.parent.with_name("dump"))
    monkeypatch.chdir(rank.directory.parent.parent.parent)
    page = (ROOT / "docs" / "guide" / "not-deterministic.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, str(Path("page.md")), "exec"), {"__name__": "page"})
    result = CliRunner().invoke(main, ["compare", "twice", "twice", "--step", "1:0"])
    assert result.exit_code == 0, result.output
    assert "The dumps are the same: every compared tensor is bitwise equal." in result.output
