"""Which layer of inductor is wrong is named: the decomposition, the pass, or the kernel; an honest compiler is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from aten_dump.cli.main import main
from aten_dump.report.replay import answer_lines
from tests.analysis.layers.faults import FAULTS, record
from tests.sampling import slow_but_for

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]
QUICK = ["decomposition of gelu"]


@pytest.mark.slow
def test_an_honest_compiler_has_no_fault(tmp_path: Path) -> None:
    path = record(tmp_path / "dump", FAULTS["decomposition of gelu_backward"])
    rank = open_dump(path).step(0).rank(0)
    parts = {(stage.part, stage.made_by) for stage in rank.kernels.stages}
    assert {("joint", "captured"), ("forward", "partitioned"), ("backward", "partitioned")} <= parts
    captured = next(stage for stage in rank.kernels.stages if stage.made_by == "captured")
    assert "aten::gelu" in {op.op for op in captured.decomposed}
    found = replay(rank)
    assert not found.layers
    assert not found.suspects


@pytest.mark.parametrize("name", slow_but_for(QUICK, FAULTS))
def test_a_fault_is_named_with_its_layer(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    with fault.inject():
        path = record(tmp_path / "dump", fault)
    found = replay(path)
    assert [one.layer for one in found.layers[:1]] == [fault.layer], [str(one) for one in found.layers]
    assert fault.named in found.layers[0].name
    if fault.layer != "kernel":
        assert not found.suspects, "each kernel is right for its graph"
    assert f"  Layer: {found.layers[0]}" in list(answer_lines(found))


@pytest.mark.slow
def test_the_command_fails_for_a_layer_that_is_wrong(tmp_path: Path) -> None:
    with (fault := FAULTS[QUICK[0]]).inject():
        path = record(tmp_path / "dump", fault)
    run = CliRunner().invoke(main, ["replay", path])
    assert run.exit_code == 1
    assert fault.named in run.output.partition("Layer: ")[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decomposition of gelu", "pass before all, another op"])
def test_compare_says_which_layer(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    with fault.inject():
        wrong = record(tmp_path / "wrong", fault)
    found = compare(wrong, record(tmp_path / "eager", fault, compiled=False))
    assert found.exit_code == 1
    assert f"layer, in the target: {replay(wrong).layers[0]}" in found.answer()


def _scaled_run(path: Path, *, compiled: bool, checks: bool = True) -> str:
    """Run a function whose number changes from step to step; without checks the code of the first step runs again."""
    torch._dynamo.reset()
    settings = {"scale": 2.0}

    def function(x: Tensor) -> Tensor:
        return torch.sin(x) * settings["scale"]

    options: dict[str, Any] = {} if checks else {"options": {"guard_filter_fn": lambda guards: [False] * len(guards)}}
    run = torch.compile(function, **options) if compiled else function
    with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels")) as dump:
        for number in range(2):
            settings["scale"] = 2.0 + number
            run(torch.linspace(-1, 1, 32)).cos()
            dump.step()
    return str(path)


@pytest.mark.slow
def test_a_guard_that_does_not_see_a_change_is_named(tmp_path: Path) -> None:
    stale = _scaled_run(tmp_path / "stale", compiled=True, checks=False)
    found = compare(stale, _scaled_run(tmp_path / "eager", compiled=False))
    assert found.exit_code == 1
    assert "layer, in the target: guard: graph" in found.answer()
    honest = compare(_scaled_run(tmp_path / "fresh", compiled=True), str(tmp_path / "eager"))
    assert honest.exit_code == 0, honest.answer()
