"""A trigger: the step is held in memory, and the calls around what happened are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import CaptureError, ConfigError, Dump, DumpConfig, DumpMode, MissingDataError, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.rank_signals import RankSignals, Signal
from aten_dump.capture.trigger.ring_sink import RingSink
from aten_dump.store.checking.verification import verify
from tests.capture.bits import assert_same
from tests.models import build, outcome_of, run_steps, train, train_step


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
    assert verify(rank.directory) == []
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
    assert verify(rank.directory) == []
    assert rank.calls[0].outputs is not None


def test_a_spike_of_the_loss(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    config = DumpConfig(
        path=str(tmp_path / "d"), data="statistic", trigger="loss_spike", trigger_before=3, trigger_after=0
    )
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

    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="statistic", trigger=great, trigger_before=2)) as dump:
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
        ({"trigger": print, "data": "tensor"}, 'allowed: data "statistic" or "full" for a function'),
        ({"trigger": "loss_spike", "level": "aten"}, 'allowed: level "mix" or "api"'),
        ({"trigger": "nonfinite", "trigger_times": 0}, "DumpConfig.trigger_times is 0"),
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
    assert verify(rank.directory) == []


def reasons(dump: Dump, step: int) -> list[str]:
    return [note.message for note in dump.step(step).rank(0).notes if note.code == "trigger"]


def broken_steps(path: Path, count: int, broken: set[int], **config: Any) -> Dump:
    """Steps of 12 calls each; the fifth call of a step in `broken` divides by zero, in the same place."""
    config = {"data": "structure", "trigger": "nonfinite", "stacks": False, "level": "aten"} | config
    with DumpMode(DumpConfig(path=str(path), **config)) as dump:
        for step in range(count):
            x, zero = torch.ones(4), torch.zeros(4)
            x.add(1)
            x.sub(1)
            x.div(zero if step in broken else x)
            for _ in range(7):
                x.add(1)
            dump.step()
    return open_dump(path)


def test_a_window_reaches_into_other_steps(tmp_path: Path) -> None:
    dump = broken_steps(tmp_path / "d", 5, {2}, trigger_before=10, trigger_after=9)
    written = {step: [call.name for call in dump.step(step).rank(0).calls] for step in dump.steps}
    assert {step: len(names) for step, names in written.items()} == {1: 6, 2: 12, 3: 2}
    assert written[1] == written[2][6:]
    assert written[3] == written[2][:2]
    assert all(dump.step(step).rank(0).complete for step in dump.steps)
    notes = {step: reasons(dump, step)[0] for step in dump.steps}
    assert notes == {
        1: "aten::div.Tensor made Inf: call 10 of step 2, rank 0; calls before it were written",
        2: "aten::div.Tensor made Inf: call 10, rank 0; 10 calls before it and 9 after it were written",
        3: "aten::div.Tensor made Inf: call 10 of step 2, rank 0; calls around it were written",
    }


def test_calls_that_were_not_recorded_part_windows(tmp_path: Path) -> None:
    dump = broken_steps(tmp_path / "d", 5, {2}, trigger_before=10, trigger_after=9, steps="0|2|4")
    assert dump.steps == [2]


def test_the_same_cause_does_not_fill_the_disk(tmp_path: Path) -> None:
    config: dict[str, Any] = {"trigger_before": 2, "trigger_after": 2}
    few = broken_steps(tmp_path / "few", 6, set(range(6)), trigger_times=2, **config)
    assert few.steps == [0, 1]
    assert "2nd time" in reasons(few, 1)[0]
    assert broken_steps(tmp_path / "all", 6, set(range(6)), trigger_times=None, **config).steps == list(range(6))


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_what_comes_from_outside_counts_once(tmp_path: Path, what: float) -> None:
    weight = torch.ones(4)
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), trigger="nonfinite", trigger_before=0, trigger_after=1)) as dump:
        for step in range(5):
            if step == 2:
                with quiet():  # as a kernel launched by hand does: no call writes it
                    weight[1] = what
            for _ in range(3):
                weight * 2
            dump.step()
    opened = open_dump(tmp_path / "d")
    assert opened.steps == [2], "in the steps after it, it is the same"
    message = reasons(opened, 2)[0]
    assert message.startswith(f"aten::mul.Tensor was given {'NaN' if what != what else 'Inf'} that no recorded call")


def test_infinity_as_a_start_of_a_minimum_is_meant(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), trigger="nonfinite")) as dump:
        best = torch.tensor(float("inf"))
        torch.minimum(best, torch.ones(())).add(1)
        dump.step()
    assert open_dump(tmp_path / "d").steps == []


def test_large_tensors_do_not_break_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring holds `trigger_bytes` of bytes, not the sum of what the window names."""
    limit, peak = 10 << 20, 0
    keep = HeldBytes.keep

    def watched(self: HeldBytes, *args: Any) -> int:
        nonlocal peak
        number = keep(self, *args)
        bases = {id(blob.memory.base): blob.memory.base.nbytes for blob in self._blobs.values() if blob.memory.nbytes}
        peak = max(peak, sum(bases.values()))
        return number

    monkeypatch.setattr(HeldBytes, "keep", watched)
    config = DumpConfig(path=str(tmp_path / "d"), data="tensor", trigger="nonfinite", trigger_bytes=limit)
    with DumpMode(config) as dump:
        x = torch.ones(1 << 20)  # 4 MiB
        for _ in range(6):
            x = x + 1
        torch.ones(1 << 22).sum()  # larger than the ring
        (x / torch.zeros(1 << 20)).sum()
        dump.step()
    assert 8 << 20 <= peak <= limit + (1 << 10)
    rank = open_dump(tmp_path / "d").step(0).rank(0)
    assert torch.isinf(rank.tensor("Aten.div.0.forward.output.0")).all()
    with pytest.raises(MissingDataError):
        rank.tensor("Aten.add.0.forward.output.0")
    assert [note.code for note in rank.notes if note.code == "trigger_bytes"] == ["trigger_bytes"]


def test_garbage_in_memory_that_nothing_wrote_is_no_nan_of_the_program(tmp_path: Path) -> None:
    """Pipeline schedules run modules on torch.empty to learn shapes; with deterministic algorithms that is all NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        with DumpMode(DumpConfig(path=str(tmp_path / "d"), trigger="nonfinite", level="aten")) as dump:
            guessed = torch.nn.functional.layer_norm(torch.empty(4, 8), (8,)) @ torch.ones(8, 2)
            assert guessed.isnan().all()
            dump.step()
            torch.zeros_like(guessed).log().sub(torch.zeros(1).log())
            dump.step()
    finally:
        torch.use_deterministic_algorithms(False)
    dump = open_dump(tmp_path / "d")
    causes = [n.message for s in dump.steps for n in dump.step(s).rank(0).notes if n.code == "trigger"]
    assert {cause.partition(": call ")[0] for cause in causes} == {"aten::log made Inf"}


def test_what_was_not_seen_is_in_run_json(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), trigger="nonfinite", level="aten")) as dump:
        torch.ones(3) + 1
        dump.step()
    coverage = open_dump(tmp_path / "d").run["coverage"]
    assert coverage["steps"] == 1
    assert coverage["notes"]["selection"] > 0


def test_signals_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    signal = Signal(rank=1, step=0, position=3, call=3, why="aten::log made NaN")
    RankSignals(tmp_path, 1).write(signal)
    mine = RankSignals(tmp_path, 0)
    assert mine.read() == []
    theirs = RankSignals(tmp_path, 1)  # removes the old one
    assert mine.read() == []
    theirs.write(signal)
    assert mine.read() == [signal]
    assert mine.read() == []
    assert theirs.read() == []


def test_garbage_that_is_only_written_over_does_not_fire(tmp_path: Path) -> None:
    garbage = [torch.full((3,), float("nan")) for _ in range(3)]
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), trigger="nonfinite")):
        torch.mul(torch.ones(3), 2.0, out=garbage[0])
        garbage[1].copy_(torch.ones(3))
        garbage[2].zero_()
    assert not (tmp_path / "dump" / "step0").exists()


def _raises(op: str, statistics: list[dict[str, Any]]) -> bool:
    return statistics[0]["maximum"] > 1


def test_a_function_that_raises_is_told_from_a_fault_of_the_recorder(tmp_path: Path) -> None:
    said = "DumpConfig.trigger names raised KeyError at aten::randn: 'maximum'"
    with pytest.raises(CaptureError, match=said) as caught:
        run(tmp_path / "d", Layers(), [None, None], trigger=_raises)
    assert "please report" not in str(caught.value) and isinstance(caught.value.__cause__, KeyError)
    with pytest.warns(UserWarning, match=said):
        run(tmp_path / "e", Layers(), [None, None], trigger=_raises, on_error="warn")


def test_a_workspace_does_not_fire(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "d", trigger="nonfinite", trigger_before=1)) as dump:
        scores = nn.Linear(4, 5)(torch.randn(8, 2, 4)).log_softmax(2)
        for length in (7, 1):
            lengths = torch.tensor([8, length])
            nn.functional.ctc_loss(scores, torch.randint(1, 5, (2, 3)), lengths, torch.tensor([3, 2])).sum()
            dump.step()
    assert open_dump(tmp_path / "d").steps == [1], "what it keeps for backward holds log(0); a loss of infinity fires"
