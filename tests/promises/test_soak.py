"""A long run with the dump on now and then leaves nothing behind."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.process_state import changes, module_hooks, picture, resident

STEPS = 1000


def slope(samples: list[tuple[int, int]]) -> float:
    """Least squares: bytes per step."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / sum((x - mean_x) ** 2 for x, _ in samples)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16), nn.BatchNorm1d(16))


@pytest.mark.slow
def test_a_thousand_steps_with_the_dump_on_every_tenth(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(8, 16)
    hooks, before = module_hooks(model), picture()
    samples: list[tuple[int, int]] = []
    during: dict[str, object] = {}
    recorded = range(0, STEPS, 10)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps=recorded, data="full"), model=model) as dump:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(model(x), x).backward()
            optimizer.step()
            dump.step()
            if step % 100 == 94:
                assert torch._C._len_torch_dispatch_stack() == 0, "a mode is on in a step that is not recorded"
                gc.collect()
                now = {k: v for k, v in picture().items() if k != "attributes"}  # large: keeping them is growth, too
                assert len(set(now.pop("files")) - set(before["files"])) <= 4, (
                    "more files are open than those of the step that is being finished"
                )
                assert not during or changes(during, now) == []
                during = during or now
            if step % 50 == 44 and step >= 200:
                samples.append((step, resident()))
    growth = slope(samples)
    print(f"{growth:.0f} bytes per step over {samples[0][0]}-{samples[-1][0]}; {samples[0][1] >> 20} MiB")
    assert not changes(before, picture())
    assert module_hooks(model) == hooks
    # A leak of one small tensor or record per recorded step is 100 bytes per step or more; pages come in 4096 bytes.
    assert growth < 2500, f"resident memory grows by {growth:.0f} bytes per step"
    assert open_dump(str(tmp_path / "dump")).steps == list(recorded)


def test_dumps_opened_one_after_the_other_leave_nothing(tmp_path: Path) -> None:
    model, x = small_model(), torch.randn(8, 16)
    before, samples = picture(), []
    for i in range(25):
        with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full", overwrite=True), model=model):
            F.mse_loss(model(x), x).backward()
        if i >= 8 and i % 4 == 0:
            gc.collect()
            samples.append((i, resident()))
    growth = slope(samples)
    print(f"{growth:.0f} bytes per dump")
    assert not changes(before, picture())
    assert growth < 50_000, f"resident memory grows by {growth:.0f} bytes per dump"
