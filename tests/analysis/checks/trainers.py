"""Trainers of libraries, recorded by their callbacks, or by a plain mode: they are right, and no rule may say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig

from .loops import net, recording


def transformers_trainer(path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from aten_dump.integrations.transformers_callback import DumpCallback

    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=64, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir=str(path.with_name("out")), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, eval_strategy="steps", eval_steps=1,
        max_grad_norm=0.5, warmup_steps=2,
    )  # fmt: skip
    tokens = [torch.randint(0, 64, (12,)) for _ in range(12)]
    data = [{"input_ids": one, "labels": one, "attention_mask": torch.ones_like(one)} for one in tokens]
    callback = DumpCallback(DumpConfig(str(path), data="tensor"))
    model = GPT2LMHeadModel(config)
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[callback]).train()


def lightning_trainer(path: Path) -> None:
    import lightning as pl

    from aten_dump.integrations.lightning_callback import DumpCallback

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = net(0.2)

        def training_step(self, batch: Tensor, at: int) -> Tensor:
            return F.cross_entropy(self.body(batch), torch.arange(len(batch)) % 3)

        def validation_step(self, batch: Tensor, at: int) -> None:
            self.body(batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    data = [torch.randn(4, 6) for _ in range(6)]
    fit = pl.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=path.parent, val_check_interval=2,
        gradient_clip_val=0.5, callbacks=[DumpCallback(DumpConfig(str(path), data="tensor"))],
    )  # fmt: skip
    fit.fit(Classifier(), *(torch.utils.data.DataLoader(part, batch_size=None) for part in (data, data[:2])))


def accelerate_loop(path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    inner: nn.Module = net(0.1)
    model, optimizer = accelerator.prepare(inner, torch.optim.AdamW(inner.parameters()))
    with recording(path, model) as dump:
        for _ in range(4):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(torch.randn(6, 6)), torch.randint(0, 3, (6,)))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            dump.step()


TRAINERS: dict[str, Callable[[Path], None]] = {
    "transformers": transformers_trainer,
    "lightning": lightning_trainer,
    "accelerate": accelerate_loop,
}
