"""A trigger: the step is held in memory, and the calls around what happened are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import ConfigError, Dump, DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite import find_nonfinite
from aten_dump.capture.ring import RingSink
from aten_dump.store import recovery
from tests.models import build, outcome_of, run_steps, train, train_step

from .bits import assert_same


class Layers(nn.Module):
    """Ten layers; `broken` makes one of them overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(10))
        self.broken: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == self.broken:
                x = x / torch.zeros_like(x)
        return x


def run(path: Path, model: Layers, broken: list[int | None], **config: Any) -> Dump:
    config = {"data": "full", "trigger": "nonfinite"} | config
    with DumpMode(DumpConfig(path=str(path), **config), model=model) as dump:
        for place in broken:
            model.broken = place
            model(torch.randn(4, 16)).sum().backward()
            dump.step()
    return open_dump(path)


def test_only_the_step_in_which_it_happens_is_written(tmp_path: Path) -> None:
    dump = run(tmp_path / "d", Layers(), [None, None, 5, None], trigger_before=12, trigger_after=6)
    assert dump.steps == [2]
    rank = dump.step(2).rank(0)
    assert rank.complete
    assert recovery.verify(rank.directory) == []
    (note,) = [note.message for note in rank.notes if note.code == "trigger"]
    assert note.startswith("aten::div.Tensor made ")
    assert note.endswith("12 calls before it and 6 after it were written")
    found = find_nonfinite(rank)
    assert found.first is not None
    assert found.first.op == "aten::div.Tensor"
    assert "test_trigger.py" in found.first.source
    division = rank["Aten.div.0.forward"]
    before = [call for call in rank.calls if call.id < division.id]
    assert {"Aten.addmm.5.forward", "Aten.addmm.4.forward"} <= {call.name for call in before}
    assert "Aten.addmm.0.forward" not in rank
    assert "Aten.addmm.6.forward" in rank, "calls after it"
    assert "Aten.addmm.9.forward" not in rank
    assert division.parent is not None, "calls around a written one are written when they end"
    assert division.inputs[0][0].tensor().isfinite().all()
    assert torch.isinf(rank.tensor("Aten.div.0.forward.output.0")).any()


def test_nothing_happens_nothing_is_written(tmp_path: Path) -> None:
    def masks() -> None:
        mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
        torch.softmax(torch.randn(4, 4) + mask, -1).sum()

    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="full", trigger="nonfinite")) as dump:
        masks()
        dump.step()
    assert open_dump(tmp_path / "d").steps == []
    assert not list((tmp_path / "d").rglob("shard-*"))


def test_memory_is_bounded_and_what_had_to_go_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    store = RingSink.store

    def watched(self: RingSink, *args: Any) -> int:
        number = store(self, *args)
        held.append(self.held_bytes)
        return number

    monkeypatch.setattr(RingSink, "store", watched)
    limit = 3000
    rank = run(tmp_path / "d", Layers(), [5], trigger_bytes=limit).step(0).rank(0)
    assert max(held) <= limit < sum(value.nbytes for value in rank.values)
    assert rank.tensor("Aten.div.0.forward.output.0").shape == (4, 16)
    lost = [value for value in rank.values if not value.has_data and not value.undefined and not value.opaque]
    assert lost
    assert recovery.verify(rank.directory) == []
    assert rank.calls[0].outputs is not None


def test_a_spike_of_the_loss(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    config = DumpConfig(path=str(tmp_path / "d"), data="statistic", trigger="loss_spike")
    with DumpMode(config, model=model) as dump:
        for step in range(12):
            scale = 50.0 if step == 9 else 1.0 + 0.01 * (step % 3)
            (model(torch.ones(2, 4)).sum() * 0 + scale).backward()
            dump.step()
    opened = open_dump(tmp_path / "d")
    assert opened.steps == [9]
    (note,) = opened.step(9).rank(0).notes
    assert note.message.startswith("the loss is 50, the last 9 were about 1.01")


def test_a_function_of_the_users(tmp_path: Path) -> None:
    def great(op: str, results: list[dict[str, Any]]) -> bool:
        return op == "aten::mul.Tensor" and results[0]["max"] > 100

    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="statistic", trigger=great)) as dump:
        for factor in (1.0, 200.0):
            torch.ones(3) * factor
            dump.step()
    opened = open_dump(tmp_path / "d")
    assert opened.steps == [1]
    assert opened.run["config"]["trigger"].endswith("great")


def test_the_program_is_the_same(tmp_path: Path) -> None:
    train_step(build("bert", "adamw_foreach"))  # every kernel has run once
    bare = train(build("bert", "adamw_foreach"), 2)
    program = build("bert", "adamw_foreach")
    config = DumpConfig(path=str(tmp_path / "d"), data="full", trigger="nonfinite", trigger_bytes=1 << 20)
    with DumpMode(config, model=program.model) as dump:
        losses = run_steps(program, 2, dump.step)
    dumped = outcome_of(program, losses).tensors()
    for name, expected in bare.tensors().items():
        assert_same(expected, dumped[name], name)
    assert open_dump(tmp_path / "d").steps == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"trigger": "sometimes"}, 'allowed: None, "nonfinite", "loss_spike", or a function'),
        ({"trigger": "nonfinite", "data": "tensor"}, 'allowed: data "statistic" or "full"'),
        ({"trigger": "nonfinite", "statistics": ("mean",)}, "with max, min, nan, neginf, posinf"),
        ({"trigger": "nonfinite", "trigger_before": -1}, "DumpConfig.trigger_before is -1"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        DumpConfig(path="d", **fields)


def test_a_dump_of_a_trigger_reads_whole(tmp_path: Path) -> None:
    """Every value that a written record names is written, also those of calls that began long before."""

    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(30):
                x.add_(1)  # the module's own input is gone from the ring when the module ends
            return x / torch.zeros(4)

    model = Writes()
    config = DumpConfig(path=str(tmp_path / "d"), data="full", trigger="nonfinite", trigger_before=3, trigger_after=2)
    with DumpMode(config, model=model) as dump:
        weight = torch.ones(4, requires_grad=True)
        model(torch.zeros(4)).mul(weight).exp().sum().backward()
        dump.step()
    rank = open_dump(tmp_path / "d").step(0).rank(0)
    assert rank.complete
    for call in rank.calls:
        call.inputs, call.outputs, call.mutated_values, call.source, call.parent
    rank.saved_for_backward()
    module = next(call for call in rank.calls if call.kind == "module")
    assert [value.shape for _, value in module.input_values()] == [(4,)]
    assert recovery.verify(rank.directory) == []
