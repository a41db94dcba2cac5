"""What breaks training at night, in models of transformers: the search and the trigger name the same call."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.cli.main import main
from aten_dump.report.nonfinite import answer_lines
from tests.models import VOCABULARY, Program, build
from tests.sampling import every_second

INF = math.inf


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, 12))


def scores_overflow(program: Program) -> None:
    model = program.model.half()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.mul_(3000)
    x = tokens()
    model(input_ids=x, labels=x).loss.backward()


def log_of_zero(program: Program) -> None:
    torch.log(torch.softmax(program.model(input_ids=tokens()).logits * 1e4, -1)).mean().neg().backward()


class Unit(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)


def norm_of_zero(program: Program) -> None:
    up = program.model.model.layers[1].mlp.up_proj
    with torch.no_grad():
        up.weight.zero_()
    program.model.model.layers[1].mlp.up_proj = nn.Sequential(up, nn.ReLU(), Unit())
    program.loss(program.model).backward()


def root_in_backward(program: Program) -> None:
    weight = program.model.transformer.wpe.weight
    distance = (weight - weight.detach()).pow(2).sum().sqrt()
    (program.loss(program.model) + distance).backward()


def exp_overflow(program: Program) -> None:
    raised = (program.model(input_ids=tokens()).logits * 300).exp()
    (raised / raised.sum(-1, keepdim=True)).log().mean().backward()


def infinity_less_infinity(program: Program) -> None:
    large = program.model(input_ids=tokens()).logits.abs().add(1) * 3e38
    (large * 10 - large * 10).mean().backward()


def nan_in_the_batch(program: Program) -> None:
    images = torch.randn(4, 3, 16, 16)
    images[2, 1, 3, 3] = torch.tensor(math.nan)  # a number is written by other ops from version to version
    F.cross_entropy(program.model(images), torch.zeros(4, dtype=torch.int64)).backward()


def padded(program: Program) -> None:
    x = tokens()
    mask = torch.ones_like(x)
    mask[0, :4] = 0
    program.model(input_ids=x, attention_mask=mask, labels=x).loss.backward()


def own_masks(program: Program) -> None:
    upper = torch.ones(12, 12).triu(1).bool()
    logits = program.model(input_ids=tokens()).logits
    scores = logits @ logits.mT
    added = torch.softmax(scores + torch.full((12, 12), -INF).triu(1), -1)
    filled = scores.masked_fill(upper, -INF).logsumexp(-1)
    (added.sum() + filled.sum()).backward()


# name -> (model, program, op of the first cause or None, phase, what `why` says)
CASES: dict[str, tuple[str, Callable[[Program], None], str | None, str, str]] = {
    "fp16 attention scores": ("gpt2", scores_overflow, "aten::bmm", "forward", "overflow of float16"),
    "log(0) in a loss": ("bert", log_of_zero, "aten::log", "forward", "a logarithm of zero"),
    "0/0 in a norm": ("llama", norm_of_zero, "aten::div.Tensor", "forward", "a division by zero: 0/0"),
    "root of 0 in backward": ("gpt2", root_in_backward, "aten::div.Tensor", "backward", "a division by zero"),
    "exp": ("llama", exp_overflow, "aten::exp", "forward", "overflow of float32"),
    "Inf - Inf": ("bert", infinity_less_infinity, "aten::mul.Tensor", "forward", "overflow of float32"),
    "NaN in the batch": ("resnet", nan_in_the_batch, "aten::lift_fresh", "forward", "came from outside"),
    "padding, gpt2": ("gpt2", padded, None, "", ""),
    "padding, llama": ("llama", padded, None, "", ""),
    "padding, bert": ("bert", padded, None, "", ""),
    "masks": ("bert", own_masks, None, "", ""),
}


@pytest.mark.parametrize("case", every_second(CASES))
def test_search_and_trigger_name_the_same(tmp_path: Path, case: str) -> None:
    model, run, op, phase, why = CASES[case]
    for name, config in {"all": {}, "trigger": {"trigger": "nonfinite"}}.items():
        program = build(model)
        with DumpMode(DumpConfig(path=str(tmp_path / name), **config), model=program.model) as dump:  # type: ignore[arg-type]
            run(program)
            dump.step()
    found = find_nonfinite(open_dump(tmp_path / "all").step(0).rank(0))
    triggered = open_dump(tmp_path / "trigger")
    if op is None:
        assert (found.producers, found.outside) == ((), ())
        assert triggered.steps == []
        return
    assert found.first is not None
    if case != "NaN in the batch":  # there the write of the NaN itself is seen
        assert (found.first.op, found.first.phase) == (op, phase)
        assert why in found.first.why
    (note,) = [note.message for note in triggered.step(0).rank(0).notes if note.code == "trigger"]
    assert note.startswith(found.first.op)
    assert f": call {found.first.call_id}, rank 0;" in note


def test_the_scale_of_a_gradient_scaler(tmp_path: Path) -> None:
    program = build("gpt2")
    optimizer = torch.optim.SGD(program.model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    path = tmp_path / "d"
    with DumpMode(DumpConfig(path=str(path)), model=program.model) as dump:
        for extra in (0.0, 1.0):
            weight = program.model.transformer.wpe.weight
            with torch.autocast("cpu", torch.float16):
                loss = program.loss(program.model)
            if extra:  # a NaN that no scale is to blame for
                loss = loss + (weight - weight.detach()).pow(2).sum().sqrt()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            dump.step()
    meant, real = (find_nonfinite(open_dump(path).step(step).rank(0)) for step in (0, 1))
    assert meant.first is None
    assert meant.scaled[0].phase == "backward"
    assert "loss scale of 1.09951e+12: the gradient scaler found it" in meant.scaled[0].why
    assert real.first is not None
    assert real.first.op == "aten::div.Tensor"
    runner = CliRunner()
    one = runner.invoke(main, ["nonfinite", str(path), "--step", "0"])
    assert (one.exit_code, "as a gradient scaler expects" in one.stdout) == (0, True)
    both = runner.invoke(main, ["nonfinite", str(path)])
    assert both.exit_code == 1
    assert "it began in step 1, rank 0: Aten.div." in both.stdout


def test_later_steps_point_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "d"
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weight], eps=0.0, foreach=False)
    with DumpMode(DumpConfig(path=str(path))) as dump:
        for factor in (1.0, 0.0, 1.0):
            optimizer.zero_grad()
            (weight * factor).sum().backward()
            if factor == 0.0:
                optimizer.state.clear()
            optimizer.step()
            dump.step()
    text = CliRunner().invoke(main, ["nonfinite", str(path)]).stdout
    assert "(step 0, rank 0)" not in text, "nothing happened in it"
    assert "a division by zero: 0/0" in text
    assert "step 2 rank 0: first in Aten.mul.0.forward" in text, "it follows from step 1, of which all is printed"
    assert text.endswith(
        "Aten.addcdiv_.0.optimizer (aten::addcdiv_)\n1 of 3 step/rank folders have no NaN or Inf, masks ignored\n"
        f"Next: aten-dump show {path} Aten.addcdiv_.0.optimizer --step 1 --rank 0\n"
    )


def test_a_buffer_that_is_filled_in_parts(record: Callable[..., Any]) -> None:
    def body() -> None:
        buffer = torch.zeros(2, 4)
        buffer[0] = torch.zeros(4) / torch.zeros(4)
        buffer[1] = torch.ones(4)
        buffer.sum(0)

    found = find_nonfinite(record(body))
    assert [event.op for event in found.producers] == ["aten::div.Tensor"]
    assert found.outside == ()


def test_garbage_that_is_only_written_over_is_no_cause(record: Callable[..., Any]) -> None:
    garbage = [torch.full((3,), float("nan")) for _ in range(5)]

    def body() -> None:
        torch.mul(torch.ones(3), 2.0, out=garbage[0])
        garbage[1].copy_(torch.ones(3))
        garbage[2].zero_()
        torch._foreach_zero_(garbage[3:])

    found = find_nonfinite(record(body))
    assert found.first is None
    assert not found.propagators


def test_what_is_written_and_read_is_looked_at(record: Callable[..., Any]) -> None:
    nan = torch.full((3,), float("nan"))
    found = find_nonfinite(record(lambda: torch.add(nan, 1.0, out=nan)))
    assert [(event.op, event.inputs[0].name) for event in found.outside] == [("aten::add.out", "input.0")]


class _Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, state: torch.Tensor) -> torch.Tensor:
        return x * state.mul_(0.5)


def test_a_keyword_that_is_written_and_read_is_looked_at(record: Callable[..., Any]) -> None:
    state = torch.full((3,), float("nan"))
    found = find_nonfinite(record(lambda: _Scaled()(torch.ones(3), state=state), level="module"))
    assert found.first is not None
    assert found.first.kind == "outside"


def test_an_infinity_to_start_from_is_meant(record: Callable[..., Any]) -> None:
    found = find_nonfinite(record(lambda: torch.minimum(torch.tensor(INF), torch.ones(())).add(1)))
    assert found.first is None


WHY: dict[str, tuple[Callable[[], object], str]] = {
    "no target": (lambda: F.cross_entropy(torch.randn(3, 4), torch.full((3,), -100)), "every target is ignored"),
    "mean of nothing": (lambda: torch.ones(0).mean(), "a mean over no element"),
    "flat row": (lambda: F.layer_norm(torch.ones(2, 4), (4,), eps=0.0), "the variance of a row or channel is zero"),
    "just too large": (lambda: torch.acos(torch.tensor([0.5, 1.0000002])), "an argument outside of [-1, 1]: 1.0000002"),
    "just too small": (lambda: torch.tensor([0.5, -1e-9]).sqrt(), "a square root of a negative number: -1e-09"),
    "small divisor": (lambda: torch.tensor([-1e30, 1e30]) / torch.full((2,), 1e-30), "overflow of float32"),
}


@pytest.mark.parametrize("case", WHY)
def test_why(record: Callable[..., Any], case: str) -> None:
    body, why = WHY[case]
    found = find_nonfinite(record(body))
    assert found.first is not None
    assert why in found.first.why


def test_ends_of_a_range_have_the_digits_they_need(record: Callable[..., Any]) -> None:
    lines = list(answer_lines(find_nonfinite(record(lambda: torch.acos(torch.tensor([0.5, 1.0000002]))))))
    assert "  input.0: float32 from 0.5 to 1.0000002" in lines
