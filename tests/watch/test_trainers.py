"""Real trainers, and a script that knows nothing of it, are watched without a change to them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as pl
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from aten_dump import Watch, open_dump
from tests.launch.running import environment


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_trainer_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    data = [{"input_ids": (ids := torch.randint(0, 64, (16,))), "labels": ids} for _ in range(24)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
        use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    with Watch(every=2, to=tmp_path / "w", model=model, modules="transformer.h.?") as watch:
        trainer.train()
    assert steps(tmp_path / "w") == [0, 2, 4] and watch.current_step == 6 and not watch.alerts
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert watch.numbers["loss"] == pytest.approx(logged[4], abs=1e-3)
    assert {"activation.norm/transformer.h.1", "gradient.norm/transformer.wte.weight"} <= set(watch.numbers)


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, at: int) -> Tensor:
        return self.body(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.slow
def test_trainer_of_lightning(tmp_path: Path) -> None:
    model = Regression()
    fit = pl.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with Watch(every=2, to=tmp_path / "w", model=model, modules="body") as watch:
        fit.fit(model, torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2))
    assert steps(tmp_path / "w") == [0, 2, 4] and watch.current_step == 6 and not watch.alerts
    assert {"gradient.norm/body.weight", "activation.mean/body", "lr/group0"} <= set(watch.numbers)


@pytest.mark.slow
def test_accelerate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AcceleratorState._reset_state(reset_partial_state=True)  # another test in this process may have made one
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with Watch(every=2, to=tmp_path / "w", model=model, optimizer=optimizer, modules="0") as watch:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    assert steps(tmp_path / "w") == [0, 2] and watch.current_step == 4 and not watch.alerts
    assert "activation.underflow.bfloat16/0" in watch.numbers, "autocast computed it in bfloat16"


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(6):
    x = torch.randn(2, 4)
    loss = (model(x) * (float("nan") if step == 3 else 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save([p.nan_to_num() for p in model.parameters()], "left.pt")
"""


@pytest.mark.slow
def test_a_script_that_knows_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", "-m", "aten_dump", "run", "--watch", "w.jsonl", "--watch-every", "3"]
    command += ["--watch-modules", "0,1", "--watch-formats", "nvfp4,float8_e4m3fn"]
    command += ["--path", "dump", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "w.jsonl") == [0, 3]
    numbers = json.loads((tmp_path / "w.jsonl").read_text().splitlines()[0])["numbers"]
    kinds = {name.partition("/")[0] for name in numbers}
    assert {"gradient.saturated_blocks.nvfp4", "gradient.underflow.float8_e4m3fn", "activation.norm"} <= kinds
    assert "step 3: loss has 1 NaN in 1 elements" in done.stderr
    assert open_dump(tmp_path / "dump").steps == [4]
    watched = torch.load(tmp_path / "left.pt")
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment(), check=True)
    assert all(torch.equal(*pair) for pair in zip(watched, torch.load(tmp_path / "left.pt"), strict=True))
