"""A real Trainer of Lightning with our callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as pl
import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, open_dump
from aten_dump.integrations.lightning_callback import DumpCallback


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, at: int) -> Tensor:
        return self.body(batch).square().mean()

    def validation_step(self, batch: Tensor, at: int) -> None:
        self.body(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def train(folder: Path, *callbacks: DumpCallback) -> list[Tensor]:
    model, data = Regression(), [torch.full((2, 4), float(i)) for i in range(6)]
    fit = pl.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[*callbacks],
        val_check_interval=2,
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(part, batch_size=None) for part in (data, data[:2])]
    fit.fit(model, *loaders)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.slow
def test_each_step_of_the_optimizer_is_one_and_validation_is_in_none(tmp_path: Path) -> None:
    bare = train(tmp_path)
    recorded = train(tmp_path, DumpCallback(DumpConfig(tmp_path / "dump", data="structure")))
    assert all(torch.equal(one, other) for one, other in zip(bare, recorded, strict=True))
    dump = open_dump(tmp_path / "dump")
    assert dump.steps[:3] == [0, 1, 2]
    for step in (0, 1, 2):
        rank = dump.step(step).rank(0)
        assert len(rank.module("body").calls) == 2
        assert [call for call in rank.calls if call.phase == "optimizer"]
