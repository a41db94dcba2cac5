"""Two training steps of real models on an honest other device raise no alarm; stale BatchNorm statistics are found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare
from tests.analysis.transformer import OtherDevice
from tests.models import build, train_step
from tests.sampling import slow_but_for


def _record(
    path: Path, name: str, device: OtherDevice | None, change: Callable[[torch.nn.Module], None] = lambda m: None
) -> Path:
    program = build(name, "adamw_foreach")
    change(program.model)
    with device or nullcontext(), DumpMode(DumpConfig(path=str(path), data="full"), model=program.model) as dump:
        for _ in range(2):
            train_step(program)
            dump.step()
    return path


@pytest.mark.parametrize("name", slow_but_for(["resnet"], ["gpt2", "bert", "llama", "resnet"]))
def test_honest_training_raises_no_alarm(name: str, tmp_path: Path) -> None:
    found = compare(_record(tmp_path / "t", name, OtherDevice()), _record(tmp_path / "b", name, None))
    assert found.verdict == "within" and len(found.ranks) == 2, found.answer()


def test_stale_statistics_of_a_batch_norm_are_named(tmp_path: Path) -> None:
    def stale(model: torch.nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.0

    found = compare(_record(tmp_path / "t", "resnet", OtherDevice(), stale), _record(tmp_path / "b", "resnet", None))
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert found.cause.row.place.op.startswith("aten::native_batch_norm") and "momentum" in found.cause.text
