"""A run that is watched is the bare run, bit by bit, and has the numbers that the program could have computed."""

from __future__ import annotations

import copy
import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import aten_dump
from aten_dump import ConfigError, DumpConfig, DumpMode, Watch, open_dump

Loop = Callable[[nn.Module, torch.optim.Optimizer, Watch | None], list[Tensor]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.body, x, use_reentrant=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6), torch.randint(0, 3, (8,))


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, watch: Watch | None) -> list[Tensor]:
    losses = []
    for _ in range(7):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, watch: Watch | None) -> list[Tensor]:
    losses = []
    for _ in range(7):
        optimizer.zero_grad()
        for _ in range(3):
            x, y = batch()
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if watch is not None:
            watch.step()
    return losses


def copying(model: nn.Module, optimizer: torch.optim.Optimizer, watch: Watch | None) -> list[Tensor]:
    """Copy and save the model amidst a step, and evaluate."""
    losses = []
    for _ in range(3):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        average = copy.deepcopy(model)
        with torch.no_grad():
            average.eval()(x)
            model.eval()(x)
            model.train()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def run(loop: Loop, watch: Callable[[nn.Module, Any], Watch] | None = None) -> tuple[list[Tensor], Watch | None]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    if watch is None:
        return [*loop(model, optimizer, None), *model.parameters(), torch.get_rng_state()], None
    with watch(model, optimizer) as watching:
        losses = loop(model, optimizer, watching)
    return [*losses, *model.parameters(), torch.get_rng_state()], watching


@pytest.mark.parametrize("loop", [plain, accumulating, copying])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_bits_are_those_of_the_bare_run(loop: Loop, every: int, tmp_path: Path) -> None:
    bare, _ = run(loop)
    watched, watch = run(
        loop,
        lambda model, optimizer: Watch(every, tmp_path / "w", model=model, modules="*", formats=("nvfp4", "float16")),
    )
    assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))
    assert watch is not None and watch.current_step == (3 if loop is copying else 7)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_numbers_are_what_the_program_could_have_computed(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": model.blocks.parameters()}, {"params": model.head.parameters(), "lr": 0.5}], 0.1
    )
    seen: list[Tensor] = []
    model.head.register_forward_hook(lambda module, args, result: seen.append(result.detach().clone()))
    with Watch(every=2, to=tmp_path / "w", model=model, modules="head") as watch:
        for _ in range(3):
            before = model.head.weight.detach().clone()
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            total = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            gradient = model.head.weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    assert [row["step"] for row in rows(tmp_path / "w")] == [0, 2]
    found = watch.numbers
    update = model.head.weight.detach() - before
    expected = {
        "loss": loss.item(), "total/gradient.norm": total.item(),
        "parameter.norm/head.weight": before.norm().item(), "parameter.max/head.weight": before.abs().max().item(),
        "gradient.norm/head.weight": gradient.norm().item(), "gradient.mean/head.weight": gradient.mean().item(),
        "update.norm/head.weight": update.norm().item(),
        "update.ratio/head.weight": (update.norm() / before.norm()).item(),
        "activation.norm/head": seen[-1].norm().item(), "activation.std/head": seen[-1].std(correction=0).item(),
        "activation.dead/head": 0.0, "lr/group0": 0.1, "lr/group1": 0.5,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert not [name for name in found if name.startswith("activation") and not name.endswith("/head")]


def test_micro_batches_are_one_step_and_a_checkpoint_is_measured_once(tmp_path: Path) -> None:
    _, watch = run(accumulating, lambda model, optimizer: Watch(6, tmp_path / "w", model=model, modules="*.body.3"))
    assert watch is not None
    losses, _ = run(accumulating)
    assert watch.numbers["loss"] == pytest.approx(sum(losses[18:21]).item())
    assert watch.numbers["total/gradient.norm"] == pytest.approx(0.1, rel=1e-3), "as it is applied, clipped"
    activation = [name for name in watch.numbers if name.startswith("activation.norm")]
    assert activation == ["activation.norm/blocks.0.body.3", "activation.norm/blocks.1.body.3"]


def test_nothing_is_active_in_a_step_that_is_not_watched(tmp_path: Path) -> None:
    active: list[bool] = []
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    call, backward, scale = nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.scale

    def is_active() -> bool:
        hooks = [*torch_optimizer._global_optimizer_pre_hooks, *model._forward_hooks, *model.head._forward_hooks]
        replaced = (nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.scale) != (call, backward, scale)
        return (
            bool(hooks)
            or replaced
            or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())
        )

    with Watch(every=3, to=tmp_path / "w", model=model, modules="*"):
        for _ in range(5):
            active.append(is_active())
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert active == [True, False, False, True, False]
    assert not is_active() and not torch_optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize("records", [False, True])
def test_what_runs_in_a_step_that_is_not_watched_does_not_grow_with_its_ops(records: bool, tmp_path: Path) -> None:
    """Count every function of ours that Python calls in such a step: per step, and none per op, module or gradient."""
    ours = str(Path(aten_dump.__file__).parent)
    weight = nn.Parameter(torch.ones(4))
    layer = nn.Identity()
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD([weight], 0.1)
    counts: list[int] = []

    def count(frame: Any, event: str, _: object) -> None:
        counts[-1] += event == "call" and frame.f_code.co_filename.startswith(ours)

    def step(ops: int, watch: Watch) -> None:
        counts.append(0)
        threading.setprofile(count)  # backward may run on a thread that begins here
        sys.setprofile(count)
        x = weight * 1
        for _ in range(ops):
            x = layer(x + 1)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step()
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()

    record = tmp_path / "dump" if records else None
    with Watch(every=100, to=tmp_path / "w", model=model, modules="*", record=record) as watch:
        for ops in (10, 10, 1000, 10, 1000):
            step(ops, watch)
    assert counts[0] > 100, "the first is watched"
    assert len(set(counts[1:])) == 1 and counts[1] < 10, counts


def test_an_alert_has_the_next_step_recorded_whole(tmp_path: Path) -> None:
    for counts in (False, True):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        heard: list[str] = []
        folder = tmp_path / str(counts)
        with Watch(
            every=2, to=folder / "w", model=model, record=folder / "dump", records=2,
            on_alert=lambda alert: heard.append(alert.rule),  # noqa: B023
        ) as watch:  # fmt: skip
            for step in range(12):
                x, y = batch()
                (F.cross_entropy(model(x), y) * (float("nan") if step in (4, 8) else 1)).backward()
                for parameter in model.parameters():
                    parameter.grad.nan_to_num_()
                optimizer.step()
                optimizer.zero_grad()
                if counts:
                    watch.step()
        assert heard == ["nonfinite", "nonfinite"] == [alert.rule for alert in watch.alerts]
        dump = open_dump(folder / "dump")
        assert dump.steps == [5, 9]
        for step in dump.steps:
            rank = dump.step(step).rank(0)
            assert rank.complete and len(rank.module("head").calls) == 1
            assert {call.phase for call in rank.calls} == {"forward", "recompute", "backward", "optimizer"}
            assert not [call for call in rank.calls if call.error and call.phase != "recompute"]
        assert DumpMode.current() is None


def test_it_goes_beside_a_dump_of_the_program(tmp_path: Path) -> None:
    def recorded(folder: Path, watches: bool) -> list[str]:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch = Watch(every=1, to=folder / "w", model=model, modules="*", record=folder / "other")
        with DumpMode(DumpConfig(folder / "dump", data="hash"), model=model) as dump:
            if watches:
                watch.start()
            for _ in range(2):
                F.cross_entropy(model(batch()[0]), batch()[1]).backward()
                optimizer.step()
                optimizer.zero_grad()
                dump.step()
            watch.close()
        return [call.name for step in (0, 1) for call in open_dump(folder / "dump").step(step).rank(0).calls]

    assert recorded(tmp_path / "one", True) == recorded(tmp_path / "other", False)


def test_what_fails_in_the_measuring_does_not_reach_the_program(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["odd"] = _Odd([1])
    stopped = pytest.warns(UserWarning, match="Watch has stopped at step 0: ZeroDivisionError")
    with stopped, Watch(every=1, to=tmp_path / "w", model=model) as watch:
        plain(model, optimizer, watch)
    assert watch.numbers == {} and not torch_optimizer._global_optimizer_post_hooks


class _Odd(tuple):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise ZeroDivisionError


def test_a_program_that_raises_in_a_watched_step_leaves_nothing(tmp_path: Path) -> None:
    before = nn.Module.__call__
    model = Net()
    with (
        pytest.raises(RuntimeError, match="mat1 and mat2"),
        Watch(every=1, to=tmp_path / "w", model=model, modules="*"),
    ):
        model(torch.randn(2, 5))
    assert nn.Module.__call__ is before and not torch_optimizer._global_optimizer_post_hooks
    assert (tmp_path / "w").read_text() == ""


def test_steps_are_counted_by_the_last_optimizer_or_by_the_program(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(first.parameters(), 0.1), torch.optim.Adam(second.parameters(), 0.1)]
    with Watch(1, tmp_path / "w", model={"a": first, "b": second}, optimizer=optimizers) as watch:
        for _ in range(2):
            second(first(torch.randn(3, 2))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert watch.current_step == 2
    assert {"gradient.norm/a.weight", "gradient.norm/b.bias", "lr/group0", "lr/optimizer1.group0"} <= set(watch.numbers)
    with Watch(10, tmp_path / "v", optimizer=optimizers) as watch:
        for number in (10, 20):
            second(first(torch.randn(3, 2))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            watch.step(number, loss=7.0)
    assert watch.current_step == 20 and [row["step"] for row in rows(tmp_path / "v")] == [0, 10]
    assert watch.numbers["loss"] == 7.0 and "parameter.norm/group0.0" in watch.numbers


def test_a_run_that_goes_on_is_counted_from_where_it_stopped(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = Watch(every=10, to=tmp_path / "w", model=model).start(98)
    plain(model, optimizer, watch)
    watch.close()
    watch.close()
    assert watch.current_step == 105 and [row["step"] for row in rows(tmp_path / "w")] == [100]


def test_gradients_of_embeddings_may_be_sparse(tmp_path: Path) -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Watch(every=1, to=tmp_path / "w", model=model, optimizer=optimizer) as watch:
        model(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
    assert watch.numbers["gradient.norm/weight"] == pytest.approx(math.sqrt(4 * 4 + 4))


def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    compiled = torch.compile(model, backend=counter)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Watch(every=2, to=tmp_path / "w", model=compiled, modules="*") as watch:
        for _ in range(4):
            F.cross_entropy(compiled(batch()[0]), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
    assert counter.frame_count == 1
    assert {"gradient.norm/0.weight", "activation.norm/(model)"} <= set(watch.numbers)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, "neither a model nor an optimizer"),
        ({"model": 3}, "got a int as a model"),
        ({"model": nn.Linear(1, 1), "optimizer": 3}, "got a int as an optimizer"),
        ({"model": nn.Linear(1, 1), "every": 0}, "every=0; allowed: a whole number from 1 on"),
        ({"model": nn.Linear(1, 1), "formats": "fp7"}, "'fp7' in formats; allowed: float16, "),
        ({"model": nn.Linear(1, 1), "parts": ["weights"]}, "'weights' in parts; allowed: parameters, "),
        ({"model": nn.Linear(1, 1), "modules": [""]}, "'' in modules; allowed: globs"),
        ({"model": nn.Linear(1, 1), "ranks": 0}, "ranks=0; allowed: 'together', 'each'"),
        ({"model": nn.Linear(1, 1), "rules": 3}, "rules=3; allowed: AlertRules"),
        ({"model": nn.Linear(1, 1), "record": 3}, "record=3; allowed: a path, a DumpConfig"),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(options: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        Watch(**options)


def test_a_dump_that_is_there_is_not_found_out_at_the_first_alert(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")):
        torch.ones(1) + 1
    with pytest.raises(ConfigError, match="holds a dump already"):
        Watch(model=nn.Linear(1, 1), record=tmp_path / "dump")
    Watch(model=nn.Linear(1, 1), record=DumpConfig(tmp_path / "dump", overwrite=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two minutes on a machine with nothing else to do
def test_memory_does_not_grow_over_ten_thousand_steps(tmp_path: Path) -> None:
    resident: list[int] = []
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    to = [tmp_path / "w", f"tensorboard:{tmp_path / 'runs'}"]
    with Watch(every=10, to=to, model=model, modules="*", formats=("float16",)) as watch:
        for step in range(10_000):
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in (2_000, 9_999):
                resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert watch.current_step == 10_000
    assert resident[1] - resident[0] < 4 << 20, resident
