"""A real Trainer of transformers with our callback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from aten_dump import DumpConfig, open_dump
from aten_dump.integrations.transformers_callback import DumpCallback


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.body(x)
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


def train(folder: Path, *callbacks: DumpCallback) -> list[Tensor]:
    model = Regression()
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, eval_strategy="steps", eval_steps=1,
    )  # fmt: skip
    data = [{"x": torch.full((4,), float(i)), "labels": torch.ones(1)} for i in range(12)]
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[*callbacks]).train()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.slow
def test_each_step_of_the_optimizer_is_one_and_evaluation_is_in_none(tmp_path: Path) -> None:
    bare = train(tmp_path)
    recorded = train(tmp_path, DumpCallback(DumpConfig(tmp_path / "dump", data="structure")))
    assert all(torch.equal(one, other) for one, other in zip(bare, recorded, strict=True))
    dump = open_dump(tmp_path / "dump")
    assert dump.steps[:3] == [0, 1, 2]
    for step in (0, 1, 2):
        rank = dump.step(step).rank(0)
        assert len(rank.module("body").calls) == 2  # two batches; evaluation after each step is left out
        assert [call for call in rank.calls if call.phase == "optimizer"]
