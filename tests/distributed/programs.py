"""Distributed programs, run bare and dumped in one process per rank: python -m tests.distributed.programs NAME FOLDER.

Each returns what it computed, bare and under each dump, for the test to compare; `main` saves it as rank<R>.pt.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode

STEPS = 2
Result = dict[str, Any]


def _init(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=2)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))


def _train(model: nn.Module, after: Callable[[], object], same_data: bool = False) -> Result:
    """Two steps of AdamW; returns losses, gradients and parameters, whole ones of what is sharded."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7 if same_data else 7 + RANK)
    found: Result = {}
    for step in range(STEPS):
        x, y = torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        found[f"loss.{step}"] = loss.detach().clone()
        for name, parameter in model.named_parameters():
            found[f"gradient.{step}.{name}"] = _local(parameter.grad).clone()
        optimizer.step()
        optimizer.zero_grad()
        after()
    for name, parameter in model.named_parameters():
        found[f"parameter.{name}"] = _local(parameter.detach()).clone()
    return found


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _bare_and_dumped(
    folder: Path, build: Callable[[], nn.Module], dumps: dict[str, dict[str, Any]], **options: Any
) -> Result:
    """Train afresh without a dump, then once under each dump."""
    _train(build(), lambda: None, **options)  # the first of everything, once
    results = {"bare": _train(build(), lambda: None, **options)}
    for name, config in dumps.items():
        model = build()
        with DumpMode(DumpConfig(path=str(folder / name), **config), model=model) as dump:
            results[name] = _train(model, dump.step, **options)
    return results


def ddp(folder: Path) -> Result:
    _init(folder)

    def build(**options: Any) -> nn.Module:
        return nn.parallel.DistributedDataParallel(_model(), **options)

    results = _bare_and_dumped(folder, build, {"dump": {"data": "full"}})
    views = _bare_and_dumped(folder, lambda: build(gradient_as_bucket_view=True), {"views": {"data": "full"}})
    return {**results, "views.bare": views["bare"], "views": views["views"]}


def fsdp(folder: Path) -> Result:
    _init(folder)
    from torch.distributed.fsdp import fully_shard

    def build() -> nn.Module:
        model = _model()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)

    return _bare_and_dumped(folder, build, {"one": {"data": "full"}, "two": {"data": "full"}})


def tensor_parallel(folder: Path) -> Result:
    _init(folder)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    def build() -> nn.Module:
        return parallelize_module(_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    return _bare_and_dumped(folder, build, {"one": {"data": "full"}, "two": {"data": "full"}}, same_data=True)


def collectives(folder: Path) -> Result:
    """Plain, asynchronous and functional collectives; returns the results as the program itself saw them."""
    _init(folder)
    from torch.distributed import _functional_collectives as functional

    pair = dist.new_group([0, 1])
    _exchange(functional, pair, {}).wait()  # warms up
    seen: Result = {}
    with DumpMode(DumpConfig(path=str(folder / "dump"), data="full")) as dump:
        work = _exchange(functional, pair, seen)
        dump.step()
        seen["forgotten"].view(2, 2)
        work.wait()
        seen["next step"] = seen["forgotten"] + 1
    return {"seen": seen}


def _exchange(functional: Any, pair: Any, seen: Result) -> Any:
    """Put the results in `seen`; return the work of a last collective that nobody has waited for."""
    mine = torch.arange(4.0) + 10 * RANK
    total = mine.clone()
    dist.all_reduce(total, op=dist.ReduceOp.MAX, group=pair)
    seen["max"] = total.clone()
    flying = mine.clone()
    work = dist.all_reduce(flying, async_op=True)
    seen["view"] = flying.view(2, 2).shape  # looks at no element
    work.wait()
    seen["sum"] = flying.clone()
    parts = [torch.empty(4) for _ in range(2)]
    dist.all_gather(parts, mine)
    seen["gathered"] = torch.stack(parts)
    first, second = mine.clone(), mine.clone() * 2
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    works[1].wait()
    works[0].wait()
    seen["out of order"] = torch.stack([first, second])
    buffer = torch.zeros(8)
    works = [dist.all_reduce(buffer[4:].copy_(mine), async_op=True)]
    seen["other half"] = buffer[:4] + 1  # nobody writes there
    works[0].wait()
    seen["buffer"] = buffer.clone()
    if RANK == 0:
        dist.send(mine, 1)
    else:
        received = torch.empty(4)
        dist.recv(received, 0)
        seen["received"] = received.clone()
    seen["functional"] = functional.all_reduce(mine, "sum", pair) + 0
    seen["scattered"] = functional.reduce_scatter_tensor(mine, "sum", 0, pair) + 0
    seen["forgotten"] = mine.clone()
    return dist.all_reduce(seen["forgotten"], async_op=True)


def pipeline(folder: Path) -> Result:
    """GPipe over two stages; returns losses and gradients of this stage."""
    _init(folder)
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def run(after: Callable[[], object]) -> Result:
        torch.manual_seed(0)
        whole = [nn.Linear(8, 16), nn.Linear(16, 4)]
        module = nn.Sequential(whole[RANK], nn.Tanh())
        stage = PipelineStage(module, RANK, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
        found: Result = {}
        for step in range(STEPS):
            torch.manual_seed(step)
            x, y = torch.randn(4, 8), torch.randn(4, 4)
            losses: list[Tensor] = []
            if RANK == 0:
                schedule.step(x)
            else:
                schedule.step(target=y, losses=losses)
            found |= {f"loss.{step}.{i}": loss.detach().clone() for i, loss in enumerate(losses)}
            for name, parameter in module.named_parameters():
                found[f"gradient.{step}.{name}"] = parameter.grad.clone()
            after()
        return found

    run(lambda: None)
    results = {"bare": run(lambda: None)}
    with DumpMode(DumpConfig(path=str(folder / "dump"), data="full")) as dump:
        results["dump"] = run(dump.step)
    return results


def launched(folder: Path) -> Result:
    """The mode is entered before the process group is there; only torchrun's variables tell the rank."""
    before = _wrapped_methods()
    with DumpMode(DumpConfig(path=str(folder / "dump"), data="full")):
        during = _wrapped_methods()
        _init(folder)
        total = torch.ones(3) * (RANK + 1)
        dist.all_reduce(total)
    return {"total": total, "wrapped": during != before, "put back": _wrapped_methods() == before}


def _wrapped_methods() -> list[dict[str, int]]:
    owners = (torch.distributed.Work, torch._C.Future, torch.UntypedStorage)
    return [{name: id(item) for name, item in vars(owner).items()} for owner in owners]


def one_sided(folder: Path) -> Result:
    """Rank 0 records all, rank 1 nothing: nobody may wait for the other because of it."""
    _init(folder)
    build = lambda: nn.parallel.DistributedDataParallel(_model())  # noqa: E731
    return _bare_and_dumped(folder, build, {"dump": {"ranks": 0, "data": "full"}})


def compressed(folder: Path) -> Result:
    """DDP with a communication hook, whose last part runs as the callback of a future on a thread of gloo's."""
    _init(folder)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def build() -> nn.Module:
        model = nn.parallel.DistributedDataParallel(_model())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model

    return _bare_and_dumped(folder, build, {"dump": {"data": "full"}})


def power_sgd(folder: Path) -> Result:
    """DDP with PowerSGD, which keeps memory from step to step that callbacks write; ranks are late by turns."""
    _init(folder)
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    late = [RANK]

    def hook(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        time.sleep(0.05 * (late[0] % 2))
        return powerSGD_hook.powerSGD_hook(state, bucket)

    hook.__annotations__.clear()  # DDP refuses those that are texts

    def build() -> nn.Module:
        late[0] += 1
        model = nn.parallel.DistributedDataParallel(_model())
        state = powerSGD_hook.PowerSGDState(None, min_compression_rate=1, start_powerSGD_iter=2)
        state.iter = 2  # it compresses from the first step on
        model.register_comm_hook(state, hook)
        return model

    return _bare_and_dumped(folder, build, {"one": {"data": "tensor"}, "two": {"data": "tensor"}})


def _step_with_nan(model: nn.Module, broken: bool) -> None:
    loss = model(torch.ones(4, 8)).mean()
    number = torch.full((), 0.0 if broken else 1.0)
    (loss * (number / number)).backward()


def triggered(folder: Path) -> Result:
    """Rank 1 makes a NaN in step 1; the gradients that come from it are NaN on rank 0 too."""
    _init(folder)
    result: Result = {}
    for name in ("bare", "dump"):
        model = nn.parallel.DistributedDataParallel(_model())
        config = DumpConfig(path=str(folder / name), trigger="nonfinite", trigger_before=30, trigger_after=10)
        with DumpMode(config, model=model) if name == "dump" else contextlib.nullcontext() as dump:
            for step in range(STEPS + 1):
                model.zero_grad()
                _step_with_nan(model, step == 1 and RANK == 1)
                if dump is not None:
                    dump.step()
        result[name] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    _triggered_behind(folder / "behind", folder / "rank0-waits")
    return result


def _triggered_behind(path: Path, other: Path) -> None:
    """Rank 1 makes a NaN in step 1 when rank 0 is in step 2 already, and makes no call while it waits."""
    model = _model()
    config = DumpConfig(path=str(path), data="full", trigger="nonfinite", trigger_before=40, trigger_after=100)
    with DumpMode(config, model=model) as dump:
        for step in range(STEPS + 1):
            if step == 1 and RANK == 1:
                _wait_for(other)
            _step_with_nan(model, step == 1 and RANK == 1)
            if step == 2 and RANK == 0:
                other.touch()
                _wait_for(path / "step1/rank0/index.msgpack")
                _wait_for(path / "step0/rank0/index.msgpack")
            dump.step()


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.05)


PROGRAMS: dict[str, Callable[[Path], Result]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
    "collectives": collectives,
    "pipeline": pipeline,
    "launched": launched,
    "one_sided": one_sided,
    "compressed": compressed,
    "power_sgd": power_sgd,
    "triggered": triggered,
}
RANK = -1


def main(name: str, folder: Path) -> None:
    global RANK
    import os

    RANK = int(os.environ["RANK"])
    torch.set_num_threads(1)
    result = PROGRAMS[name](folder)
    torch.save(result, folder / f"rank{RANK}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
