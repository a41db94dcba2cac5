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


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "resnet"])
def test_honest_training_raises_no_alarm(name: str, tmp_path: Path) -> None:
    found = compare(_record(tmp_path / "t", name, OtherDevice()), _record(tmp_path / "b", name, None))
    assert found.verdict == "within" and len(found.ranks) == 2, found.answer()


class _BiasOfNoise(torch.nn.Module):
    """Its first bias has gradients that are nothing but rounding: batch norm takes the mean away."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def _trained_with(path: Path, beta2: float = 0.999, **kind: bool) -> Path:
    torch.manual_seed(0)
    model = _BiasOfNoise()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, beta2), **kind)
    generator = torch.Generator().manual_seed(1)
    with DumpMode(DumpConfig(path=str(path), data="full"), model=model) as dump:
        for _ in range(4):
            x, y = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            dump.step()
    return path


def test_another_implementation_of_adamw_is_honest_in_later_steps_too(tmp_path: Path) -> None:
    """From the second step on the moments come from outside; those of noise differ by as much as they are."""
    fused, loop = _trained_with(tmp_path / "f", fused=True), _trained_with(tmp_path / "l", foreach=False)
    for target, baseline in ((fused, loop), (loop, fused)):
        found = compare(target, baseline)
        assert found.verdict == "within" and len(found.ranks) == 4, found.answer()


def test_another_decay_of_the_fused_adamw_is_named(tmp_path: Path) -> None:
    target = _trained_with(tmp_path / "f", fused=True, beta2=0.99)
    found = compare(target, _trained_with(tmp_path / "l", foreach=False))
    assert found.first is not None and found.first[1].row.place.op == "aten::_fused_adamw_", found.answer()


def test_stale_statistics_of_a_batch_norm_are_named(tmp_path: Path) -> None:
    def stale(model: torch.nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.0

    found = compare(_record(tmp_path / "t", "resnet", OtherDevice(), stale), _record(tmp_path / "b", "resnet", None))
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert found.cause.row.place.op.startswith("aten::native_batch_norm") and "momentum" in found.cause.text
