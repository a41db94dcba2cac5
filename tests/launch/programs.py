"""Training programs that know nothing of aten_dump: python -m tests.launch.programs NAME FOLDER.

Each leaves the bits of what it computed as rank<R>.pt.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Result = dict[str, Any]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def batches(count: int, seed: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)


def parameters(trained: nn.Module) -> Result:
    return {name: parameter.detach().clone() for name, parameter in trained.named_parameters()}


def save(folder: Path, rank: int, result: Result) -> None:
    torch.save({**result, "rng": torch.get_rng_state()}, folder / f"rank{rank}.pt")


def accumulating(folder: Path) -> None:
    """Six batches, two to a step, with a schedule; ends with an exit code of its own."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for at, (x, y) in enumerate(batches(6)):
        (nn.functional.mse_loss(trained(x), y) / 2).backward()
        if at % 2:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    save(folder, 0, {**parameters(trained), "input": sys.stdin.read(), "path": [p for p in sys.path if "hook" in p]})
    sys.exit(7)


def scaled(folder: Path) -> None:
    """Three iterations under a gradient scaler, which skips the second."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for at, (x, y) in enumerate(batches(3)):
        loss = nn.functional.mse_loss(trained(x), y)
        scaler.scale(loss * float("inf") if at == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    save(folder, 0, {**parameters(trained), "scale": scaler.get_scale()})


def two_optimizers(folder: Path) -> None:
    """Two iterations with two optimizers that step one after the other, inside a mode of the program's own."""
    first, second = model(), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
    with torch.device("cpu"):
        for x, _ in batches(2):
            second(first(x)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    modes = torch._C._len_torch_function_stack()
    save(folder, 0, {**parameters(first), "second": parameters(second), "modes": modes})


def ddp(folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    _train_ddp(folder, dist.get_rank())
    dist.destroy_process_group()


def _train_ddp(folder: Path, rank: int) -> None:
    """Train and return, so that the model is gone before the process group.

    What `DistributedDataParallel` holds joins gloo's threads with the GIL held where it is the group's last owner, and
    torch 2.13 then hangs if one of them is about to free what ``backward()`` left in its collective (1 to 2 in 100 runs
    on a loaded machine, with nothing of ours in them).
    """
    trained = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
    for x, y in batches(3, seed=7 + rank):
        optimizer.zero_grad()
        nn.functional.mse_loss(trained(x), y).backward()
        optimizer.step()
    save(folder, rank, parameters(trained.module))


def _spawned(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    _train_ddp(Path(folder), rank)
    torch.distributed.destroy_process_group()


def spawn(folder: Path) -> None:
    """The ranks are children of this process: no launcher's variable tells which they are."""
    torch.multiprocessing.spawn(_spawned, (str(folder),), nprocs=2)


def accelerated(folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    bare = model()
    data = torch.utils.data.DataLoader(list(batches(4)), batch_size=None, num_workers=1)
    trained, optimizer, loader = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=0.1), data)
    for x, y in loader:
        with accelerator.accumulate(trained):
            accelerator.backward(nn.functional.mse_loss(trained(x), y))
            optimizer.step()
            optimizer.zero_grad()
    save(folder, 0, parameters(bare))


def trainer(folder: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = self.body(x)
            return {"loss": nn.functional.mse_loss(found, labels), "logits": found}

    trained = Regression()
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"x": x[0], "labels": y[0]} for x, y in batches(12)]
    Trainer(model=trained, args=arguments, train_dataset=data).train()
    save(folder, 0, parameters(trained))


def lightning(folder: Path) -> None:
    import lightning as pl

    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = model()

        def training_step(self, batch: Any, at: int) -> Tensor:
            return nn.functional.mse_loss(self.body(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    trained = Regression()
    fit = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    fit.fit(trained, torch.utils.data.DataLoader(list(batches(6)), batch_size=None))
    save(folder, 0, parameters(trained))


def broken(folder: Path) -> None:
    """Dies of an error of its own in its second step."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for at, (x, y) in enumerate(batches(3)):
        nn.functional.mse_loss(trained(x), y if at == 0 else y[:, :3]).backward()
        optimizer.step()


def with_child(folder: Path) -> None:
    """Starts another Python, which calls a module too."""
    model()(torch.ones(1, 8))
    script = "import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
    save(folder, 0, {"pid": os.getpid()})


def records_itself(folder: Path) -> None:
    from aten_dump import DumpConfig, DumpMode

    trained = model()
    with DumpMode(DumpConfig(path=folder / "own"), model=trained):
        trained(torch.ones(1, 8))


def endless(folder: Path) -> None:
    """Two ranks that train until the file `stop` is there."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    trained = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    goes_on = torch.ones(1)
    while goes_on:
        trained(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on.fill_(not (folder / "stop").exists())
        dist.broadcast(goes_on, 0)
    del trained  # before the group, as `_train_ddp` does
    dist.destroy_process_group()


def compiled(folder: Path) -> None:
    trained = torch.compile(model(), backend="aot_eager")
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for x, y in batches(2):
        nn.functional.mse_loss(trained(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    save(folder, 0, parameters(trained))


PROGRAMS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        accumulating, scaled, two_optimizers, ddp, spawn, accelerated, trainer, lightning, broken, with_child, records_itself, endless,
        compiled,
    )
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(sys.argv[2], exist_ok=True)
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
