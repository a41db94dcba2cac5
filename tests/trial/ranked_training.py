"""Trains a program of the trial on two ranks, in every layout it can have: python -m tests.trial.ranked_training NAME FOLDER.

Each layout is recorded twice as it is to be, then with three kinds of bug that rank 1 alone has. What of a bug only that
rank knows (which call of which op, whether its result changed) comes back as rank1.pt.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode

from .kernels import KERNEL_SLIPS, WrongKernel
from .pipelines import PIPELINES, run_pipeline
from .programs import PROGRAMS
from .training import STEPS, Batch, Training

RANK = int(os.environ.get("RANK", "0"))
BUGS = ("kernel", "gradients", "data")
# A mean over the batch, samples that do not depend on each other, and no random numbers.
DIVIDED = (
    "point set", "flow", "masked autoregressive", "radiance field", "neural ode", "dilated convolutions", "performer",
    "target network", "triplets", "adapters", "lstm forecaster", "whisper", "mamba", "qwen3", "qwen3 bf16",
)  # fmt: skip
# Of those, what has Linear layers that can be divided.
TENSOR_PARALLEL = (
    "whisper",
    "flow",
    "radiance field",
    "neural ode",
    "point set",
    "performer",
    "target network",
    "adapters",
)
_PAIRS = (("fc1", "fc2"), ("one", "two"))  # layers of one module with nothing but an elementwise op between them
_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)


def layouts(name: str) -> tuple[str, ...]:
    """Return the layouts that a program is trained in."""
    if name in PIPELINES:
        return "gpipe", "1f1b"
    return ("ddp", "fsdp", "tp") if name in TENSOR_PARALLEL else ("ddp", "fsdp")


def prepared(name: str) -> Training:
    """Build a program with as many samples in each batch as two ranks can share."""
    training = PROGRAMS[name].build()
    training.batches = [{key: t[: len(t) // 2 * 2] for key, t in batch.items()} for batch in training.batches]
    if name in TENSOR_PARALLEL:  # torch's foreach ops and norms take no DTensors beside others
        training.clip = None
        training.settings["foreach"] = False
    return training


def train(
    path: Path, training: Training, model: nn.Module, take: Callable[[Tensor], Tensor] = lambda x: x,
    device: AbstractContextManager[Any] | None = None,
) -> None:  # fmt: skip
    """Record the two steps; `take` gives a rank's part of each tensor of a batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = training.optimizer(parameters, **training.settings)
    parts: list[Batch] = [{key: take(t).clone() for key, t in batch.items()} for batch in training.batches]
    with device or nullcontext(), DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for part in parts:
            training.loss(model, part).backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(parameters, training.clip)
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= training.decay
            training.after_step(training.model)
            optimizer.zero_grad()
            dump.step()


# -- layouts ------------------------------------------------------------------------------------------------------------


def laid_out(model: nn.Module, layout: str) -> nn.Module:
    if layout == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if layout == "tp":
        return _tensor_parallel(model)
    from torch.distributed.fsdp import fully_shard

    units = [block for blocks in model.modules() if isinstance(blocks, nn.ModuleList) for block in blocks]
    for unit in [*units, model]:
        fully_shard(unit).set_force_sum_reduction_for_comms(True)  # so that the division is an op of the program's
    return model


def _tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    owners = Counter(p for module in model.modules() for p in module._parameters.values() if p is not None)
    tied = {p for p, count in owners.items() if count > 1}  # to divide them is to part them
    plan: dict[str, Any] = {
        name: ColwiseParallel(output_layouts=Replicate())
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module.out_features > 1 and module.weight not in tied
    }
    for first, second in _pairs_of_layers(model):
        plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)


def _pairs_of_layers(model: nn.Module) -> Iterator[tuple[str, str]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        children = dict(module.named_children())
        for names in _PAIRS:
            if all(type(children.get(name)) is nn.Linear for name in names):
                yield prefix + names[0], prefix + names[1]
        if isinstance(module, nn.Sequential):
            for at in range(len(module) - 2):
                one, between, two = module[at : at + 3]
                if type(one) is type(two) is nn.Linear and isinstance(between, _ELEMENTWISE):
                    yield f"{prefix}{at}", f"{prefix}{at + 2}"


# -- bugs ---------------------------------------------------------------------------------------------------------------


class OwnPart(torch.utils._python_dispatch.TorchDispatchMode):
    """The first all-reduce of a backward pass leaves this rank what it put in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if name.startswith("_c10d_functional::all_reduce") and torch._C._current_autograd_node() is not None:
            self.given = getattr(self, "given", args[0].detach().clone())
        elif name.startswith("_c10d_functional::wait_tensor") and getattr(self, "given", None) is not None:
            result.copy_(self.given)
            self.given = None
        return result


def reduced(bucket: dist.GradBucket, keep: bool) -> torch.futures.Future[Tensor]:
    """Reduce a bucket, and go on with the mean, or by mistake with this rank's own gradients."""
    own = bucket.buffer()
    total = own / 2
    work = dist.all_reduce(total, async_op=True).get_future()
    return work.then(lambda _: own if keep else total)


def spoil_gradients(model: Any, layout: str, bug: bool) -> AbstractContextManager[Any] | None:
    if layout == "ddp":
        model.register_comm_hook(None, lambda _, bucket: reduced(bucket, keep=bug))
    elif layout == "tp" and bug:
        return OwnPart()
    elif bug:
        model.set_gradient_divide_factor(1.0)
    return None


def wrong_kernel(name: str, layout: str, sites: list[tuple[str, int]]) -> WrongKernel:
    """Draw one call that computes, each kind of op as likely as another."""
    lot = random.Random(zlib.crc32(f"{name} {layout}".encode()))
    op = lot.choice(sorted({op for op, _ in sites}))
    return WrongKernel(op, lot.choice([n for other, n in sites if other == op]), lot.choice(sorted(KERNEL_SLIPS)))


# -- one layout ---------------------------------------------------------------------------------------------------------


def record_layout(name: str, layout: str, folder: Path) -> dict[str, Any]:
    """Record a layout twice, then with each bug; return what rank 1 knows of its wrong kernel."""
    counting = WrongKernel()
    _record(name, layout, folder / f"{layout}.a", device=counting)
    _record(name, layout, folder / f"{layout}.b")
    kernel = wrong_kernel(name, layout, counting.sites) if RANK else None
    _record(name, layout, folder / f"{layout}.kernel", device=kernel)
    if layout == "ddp":
        _record(name, layout, folder / "ddp.hook", bug="gradients", guilty=False)
    for bug in ("gradients", "data"):
        _record(name, layout, folder / f"{layout}.{bug}", bug=bug, guilty=RANK == 1)
    if kernel is None:
        return {}
    return {"op": kernel.op, "number": kernel.number, "slip": kernel.slip, "changed": kernel.changed}


def _record(
    name: str, layout: str, path: Path, device: AbstractContextManager[Any] | None = None, bug: str = "",
    guilty: bool = False,
) -> None:  # fmt: skip
    torch.manual_seed(99)
    if name in PIPELINES:
        run_pipeline(path, name, layout, RANK, device, bug if guilty else "")
        return
    training = prepared(name)
    model = laid_out(training.model, layout)
    if bug == "gradients":
        device = spoil_gradients(model, layout, guilty)
    wrong = bug == "data" and guilty
    train(path, training, model, taking(layout, 0 if wrong else RANK, wrong), device)


def taking(layout: str, part: int, bug: bool) -> Callable[[Tensor], Tensor]:
    """Return what gives a rank's part of a tensor: its half, or all of it, with a bug in another order."""
    if layout == "tp":
        return (lambda x: x.roll(1, 0)) if bug else lambda x: x
    return lambda x: x.chunk(2)[part]


def main(name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    name = name.replace("_", " ")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=2)
    known = {layout: record_layout(name, layout, folder) for layout in layouts(name)}
    assert STEPS == 2
    torch.save(known, folder / f"rank{RANK}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
