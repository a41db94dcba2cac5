"""Training loops of other people's: Trainer of transformers, accelerate, PEFT, TRL, Lightning."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from . import Program


def _language_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)
    )


def _texts(count: int = 8) -> list[dict[str, Tensor]]:
    return [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(1, 32, (count, 8))]


def _pairs() -> TensorDataset:
    return TensorDataset(torch.randn(12, 4), torch.randint(0, 3, (12,)))


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 3))


def _ends(model: Any) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _arguments(folder: str, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": 2, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "logging_strategy": "no", **more,
    }  # fmt: skip


def _trainer(**more: Any) -> list[Tensor]:
    from transformers import Trainer, TrainingArguments

    model = _language_model()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            args=TrainingArguments(**_arguments(folder, **more)),
            train_dataset=_texts(),
            eval_dataset=_texts(2),
        ).train()
    return _ends(model)


def trainer() -> list[Tensor]:
    return _trainer()


def trainer_that_accumulates_and_checkpoints() -> list[Tensor]:
    return _trainer(gradient_accumulation_steps=2, gradient_checkpointing=True)


def trainer_in_bfloat16_that_evaluates() -> list[Tensor]:
    return _trainer(bf16=True, eval_strategy="steps", eval_steps=1, optim="adafactor", lr_scheduler_type="cosine")


def accelerate() -> list[Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = _classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(_pairs(), batch_size=3, shuffle=True))
    losses = []
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *_ends(model)]


def _adapted(config: Any) -> list[Tensor]:
    from peft import get_peft_model

    model = get_peft_model(_language_model(), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for batch in DataLoader(_texts(4), batch_size=2):  # type: ignore[arg-type]
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return _ends(model)


def peft_lora() -> list[Tensor]:
    from peft import LoraConfig

    return _adapted(
        LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", lora_dropout=0.1, fan_in_fan_out=True)
    )


def peft_dora() -> list[Tensor]:
    from peft import LoraConfig

    return _adapted(
        LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", use_dora=True, fan_in_fan_out=True)
    )


def peft_ia3() -> list[Tensor]:
    from peft import IA3Config

    return _adapted(
        IA3Config(
            target_modules=["c_attn", "mlp.c_proj"],
            feedforward_modules=["mlp.c_proj"],
            task_type="CAUSAL_LM",
            fan_in_fan_out=True,
        )
    )


def peft_prompts() -> list[Tensor]:
    from peft import PromptTuningConfig

    return _adapted(PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))


def trl_supervised() -> list[Tensor]:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    model = _language_model()
    data = Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in _texts()])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(**_arguments(folder, bf16=False), max_length=8, pad_token="a")
        SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=data,
            processing_class=PreTrainedTokenizerFast(tokenizer_object=_letters()),
        ).train()
    return _ends(model)


def trl_preferences() -> list[Tensor]:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    model = _language_model()
    data = Dataset.from_list([{"prompt": "a b", "chosen": "c d e", "rejected": "f g"}] * 4)
    words = PreTrainedTokenizerFast(tokenizer_object=_letters(), eos_token="a", pad_token="a", bos_token="a")
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(**_arguments(folder, bf16=False), max_length=12)
        DPOTrainer(
            model=model, ref_model=_language_model(), args=arguments, train_dataset=data, processing_class=words
        ).train()
    return _ends(model)


def _letters() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = Tokenizer(models.WordLevel({chr(97 + at): at for at in range(26)}, unk_token="a"))
    letters.pre_tokenizer = pre_tokenizers.Whitespace()
    return letters


def _fit(module: Any, data: Any, **more: Any) -> list[Tensor]:
    import lightning

    settings = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        **more,
    }
    lightning.Trainer(**settings, enable_model_summary=False).fit(
        module, DataLoader(data, batch_size=3), DataLoader(data, batch_size=6)
    )
    return _ends(module)


def lightning_automatic() -> list[Tensor]:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _classifier()

        def training_step(self, batch: Any, at: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, at: int) -> None:
            self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    return _fit(Classifier(), _pairs(), accumulate_grad_batches=2, gradient_clip_val=0.5)


def lightning_adversarial() -> list[Tensor]:
    import lightning

    class Adversaries(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.maker, self.judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

        def training_step(self, batch: Any, at: int) -> None:
            makes, judges = self.optimizers()  # type: ignore[misc]
            made = self.maker(torch.randn(len(batch[0]), 2))
            loss = F.softplus(-self.judge(batch[0])).mean() + F.softplus(self.judge(made.detach())).mean()
            self.manual_backward(loss)
            judges.step()
            judges.zero_grad()
            self.manual_backward(F.softplus(-self.judge(made)).mean())
            makes.step()
            makes.zero_grad()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.maker.parameters()), torch.optim.Adam(self.judge.parameters())

    return _fit(Adversaries(), _pairs(), limit_val_batches=0)


PROGRAMS: dict[str, Program] = {
    program.__name__.replace("_", " "): program
    for program in (
        trainer, trainer_that_accumulates_and_checkpoints, trainer_in_bfloat16_that_evaluates, accelerate, peft_lora, peft_dora, peft_ia3,
        peft_prompts, trl_supervised, trl_preferences, lightning_automatic, lightning_adversarial,
    )
}  # fmt: skip
