"""What optimizers were set to, per step: as their steps began, and as the recorded step ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import DumpConfig, DumpMode, FormatError, RankDump, open_dump
from aten_dump.cli.main import main
from aten_dump.dump.optimizer_groups import optimizer_groups
from aten_dump.store import records as r


def rank_of(path: Path, step: int = 0) -> RankDump:
    return open_dump(path).rank(step, 0)


def adamw(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0946, **options)


def test_each_group_is_recorded_before_and_after_the_scheduler(tmp_path: Path) -> None:
    model, optimizer = adamw()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with DumpMode(DumpConfig(path=tmp_path / "d"), model=model) as dump:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            scheduler.step()
            dump.step()
    decayed, bias = rank_of(tmp_path / "d").optimizers
    assert (decayed.optimizer, decayed.number, decayed.group, bias.group) == ("AdamW", 0, 0, 1)
    wanted = {"lr": 1e-3, "weight_decay": 0.0946, "betas": (0.9, 0.999), "eps": 1e-8}
    assert {name: decayed.settings[name] for name in wanted} == wanted
    assert bias.settings["weight_decay"] == 0.0
    assert "params" not in decayed.settings
    assert decayed.changed == {"lr": (1e-3, 5e-4)}
    later, _ = rank_of(tmp_path / "d", 1).optimizers
    assert (later.settings["lr"], later.after["lr"]) == (5e-4, 2.5e-4)


def test_several_steps_of_two_optimizers_in_one_recorded_step(tmp_path: Path) -> None:
    model, first = adamw()
    second = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with DumpMode(DumpConfig(path=tmp_path / "d"), model=model):
        for lr in (1.0, 2.0):
            model(torch.ones(1, 3)).sum().backward()
            first.step()
            second.param_groups[0]["lr"] = lr
            second.step()
    rank = rank_of(tmp_path / "d")
    assert [group.name for group in rank.optimizers] == ["AdamW group 0", "AdamW group 1", "SGD 1 group 0"]
    assert [group.settings["lr"] for group in rank.optimizers] == [1e-3, 1e-3, 1.0]
    last = [call for call in rank.calls if call.phase == "optimizer"][-1]
    there = optimizer_groups(rank.tables.optimizer_groups, last.record.start_ns)
    assert there[2].settings["lr"] == 2.0
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "d"), last.name]).stdout
    assert "SGD 1 group 0: lr 2, momentum 0.9" in shown


def test_a_learning_rate_in_a_tensor_is_read_unseen(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.25, dtype=torch.float64), foreach=False)
    optimizer.param_groups[0]["note"] = object()

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    for records_it in (False, True):
        with Counting() as counting:
            if records_it:
                with DumpMode(DumpConfig(path=tmp_path / "d")):
                    optimizer.step()
            else:
                optimizer.step()
        seen.append(counting.ops)
    assert seen[0] == seen[1], "a mode of the program's sees the ops of the bare program"
    (group,) = rank_of(tmp_path / "d").optimizers
    assert group.settings["lr"] == 0.25 and "note" not in group.settings


def test_a_step_without_optimizer_has_none(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "d")):
        torch.ones(2) + 1
    assert rank_of(tmp_path / "d").optimizers == ()


def test_a_trigger_keeps_them(tmp_path: Path) -> None:
    model, optimizer = adamw()
    with DumpMode(DumpConfig(path=tmp_path / "d", trigger="nonfinite"), model=model) as dump:
        (model(torch.ones(1, 3)) / 0).sum().backward()
        optimizer.step()
        dump.step()
    assert [group.settings["lr"] for group in rank_of(tmp_path / "d").optimizers] == [1e-3, 1e-3]


def test_a_setting_that_names_a_tensor_is_refused() -> None:
    row = r.OptimizerGroups(r.OPTIMIZER_GROUPS, 0, "SGD", [0], 0, False, {"lr": (r.TREE_VALUE, 1)})
    with pytest.raises(FormatError, match="it must be a literal"):
        optimizer_groups([row])


def test_it_is_recorded_which_parameters_each_optimizer_holds(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})
    model["b"].bias.requires_grad_(False)
    first = torch.optim.SGD([*model["a"].parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    second = torch.optim.AdamW([model["b"].weight])
    with DumpMode(DumpConfig(path=tmp_path / "d"), model=model) as dump:
        for _ in range(2):
            model["b"](model["a"](torch.ones(1, 3))).sum().backward()
            first.step()
            second.step()
            first.step()
            dump.step()
    for step in (0, 1):
        rows = [(row.optimizer, list(row.names)) for row in rank_of(tmp_path / "d", step).tables.parameters]
        models = (-1, ["a.weight", "a.bias", "b.weight"])
        assert rows == [models, (0, ["a.weight", "a.bias", ""]), (1, ["b.weight"])]
