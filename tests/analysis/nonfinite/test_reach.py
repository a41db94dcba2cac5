"""Findings are what reaches the loss, a gradient or what the step leaves; the rest is listed behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.cli.main import main

Record = Callable[..., Any]


def from_zero() -> Tensor:
    return torch.tensor([0.0, 0.5, 2.0, 0.0])


def a_logarithm_that_where_leaves_out() -> None:
    x = from_zero()
    torch.where(x > 0, x.log(), x).sum()


def buckets_of_positions() -> None:
    """As every T5 does: the logarithm of distance 0 is taken, and not used."""
    distance = torch.arange(6)
    large = (torch.log(distance.float() / 4) * 3).to(torch.int64)
    bucket = torch.where(distance < 2, distance, torch.min(large, torch.full_like(large, 7)))
    nn.Embedding(8, 3)(bucket.clamp(min=0)).sum().backward()


def a_row_that_is_replaced() -> None:
    (torch.zeros(4) / torch.zeros(4)).nan_to_num(0.0).sum()


def a_logarithm_that_is_clamped() -> None:
    from_zero().log().clamp(min=-100).sum()


def a_test_for_overflow() -> None:
    (torch.full((4,), 3e38) * 10).isinf().any()


def a_test_against_infinity() -> None:
    scores = torch.full((4,), 3e38) * 10
    torch.where(scores == math.inf, torch.zeros(4), scores).sum()


def targets_that_are_missing() -> None:
    error = torch.zeros(4) / torch.tensor([1.0, 0.0, 1.0, 0.0])
    error[torch.tensor([True, False, True, False])].sum()


HARMLESS = [
    a_logarithm_that_where_leaves_out, buckets_of_positions, a_row_that_is_replaced, a_logarithm_that_is_clamped,
    a_test_for_overflow, a_test_against_infinity, targets_that_are_missing,
]  # fmt: skip


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("program", HARMLESS, ids=lambda f: f.__name__)
def test_what_nothing_depends_on_is_no_finding(record: Record, program: Callable[[], None], data: str) -> None:
    rank = record(program, data=data)
    found = find_nonfinite(rank)
    assert found.first is None
    assert len(found.contained) == 1 and found.contained[0].reaches == ()
    result = CliRunner().invoke(main, ["nonfinite", str(rank.directory.parent.parent)])
    assert result.exit_code == 0, result.output
    assert f"depends on that of {found.contained[0].name}" in result.output


def an_overflow_that_is_clamped() -> None:
    hidden = (torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True) * 300).clamp(-6e4, 6e4)
    hidden.float().mean().backward()


def a_token_of_no_number() -> None:
    (torch.zeros(4) / torch.zeros(4)).argmax()


def a_number_that_the_program_reads() -> None:
    (torch.full((1,), 3e38) * 10).item()


def an_element_that_is_left() -> None:
    x = torch.tensor([1e38, 1.0])
    x.mul_(100)
    x[1:].sum()


def a_part_of_memory() -> None:
    memory = torch.zeros(2, 4)
    memory[0] = torch.zeros(4) / torch.zeros(4)
    memory[1] = torch.ones(4)
    memory.sum()


RUNNING = torch.zeros(4)


def a_buffer() -> None:
    RUNNING.zero_()
    RUNNING.add_(torch.full((4,), 3e38) * 10).mul(0.5).clamp(max=1.0)


def a_gradient_that_is_thrown_away() -> None:
    weight = nn.Parameter(torch.zeros(4))
    weight.sqrt().mul(0).sum().backward()
    assert weight.grad is not None
    weight.grad.zero_()


# program -> what is reached
FINDINGS: dict[Callable[[], None], str] = {
    an_overflow_that_is_clamped: "loss",
    a_token_of_no_number: "left",
    a_number_that_the_program_reads: "read",
    an_element_that_is_left: "left",
    a_part_of_memory: "left",
    a_buffer: "kept",
    a_gradient_that_is_thrown_away: "gradient",
}


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("program", FINDINGS, ids=lambda f: f.__name__)
def test_what_the_step_comes_to_is_a_finding(record: Record, program: Callable[[], None], data: str) -> None:
    found = find_nonfinite(record(program, data=data))
    assert found.first is not None and found.contained == ()
    assert FINDINGS[program] in found.first.reaches


def test_a_finding_comes_before_what_is_harmless(record: Record) -> None:
    def body() -> None:
        a_logarithm_that_where_leaves_out()
        an_overflow_that_is_clamped()

    found = find_nonfinite(record(body, data="statistic"))
    assert found.first is not None and found.first.op == "aten::mul.Tensor"
    assert [event.op for event in found.contained] == ["aten::log"]


# -- under a gradient scaler ----------------------------------------------------------------------------------------


def by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad


def training(
    path: Path, step: Callable[[torch.amp.GradScaler, torch.optim.Optimizer, nn.Module], object], **options: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    kind = torch.optim.AdamW if options else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.1, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step(scaler, optimizer, model)
        scaler.update()
        dump.step()


IGNORED: dict[str, Callable[[Any, Any, Any], object]] = {
    "the optimizer's own step": lambda scaler, optimizer, model: optimizer.step(),
    "written by hand": lambda scaler, optimizer, model: by_hand(model),
}


@pytest.mark.parametrize("case", IGNORED)
def test_a_step_that_ran_all_the_same_is_not_called_skipped(tmp_path: Path, case: str) -> None:
    training(tmp_path / "d", IGNORED[case])
    result = CliRunner().invoke(main, ["nonfinite", str(tmp_path / "d")])
    assert result.exit_code == 1
    assert "found it, but the optimizer's step ran: Aten." in result.stdout
    assert "skipped" not in result.stdout


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_a_step_that_was_skipped_is_no_finding(tmp_path: Path, options: dict[str, Any]) -> None:
    training(tmp_path / "d", lambda scaler, optimizer, model: scaler.step(optimizer), **options)
    result = CliRunner().invoke(main, ["nonfinite", str(tmp_path / "d")])
    assert result.exit_code == 0, result.stdout
    assert "under a loss scale of 1.04858e+06: the gradient scaler found it and skipped" in result.stdout


@pytest.mark.parametrize("first", ["step", "update"])
def test_the_scale_is_that_of_the_step_wherever_steps_end(tmp_path: Path, first: str) -> None:
    """A step may end with the optimizer's, so that the scaler's update is recorded with the step after it."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    used = []
    with DumpMode(DumpConfig(path=tmp_path / "d", data="statistic"), model=model) as dump:
        for _ in range(3):
            used.append(scaler.get_scale())
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(4, 8) * 100).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            for then in ("step", "update") if first == "step" else ("update", "step"):
                dump.step() if then == "step" else scaler.update()
    recorded = open_dump(tmp_path / "d")
    assert used == [2.0**20, 2.0**19, 2.0**18]
    assert [recorded.rank(step, 0).loss_scale for step in range(3)] == used


def test_of_a_long_healthy_run_the_ten_values_nearest_to_overflow_are_shown(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "d", data="statistic")) as dump:
        for step in range(20):
            for k in range(5):
                torch.full((2,), 100.0 + step, dtype=torch.float16) * (100.0 + k)
            dump.step()
    lines = CliRunner().invoke(main, ["nonfinite", str(tmp_path / "d")]).stdout.splitlines()
    near = [line for line in lines if line.startswith("near overflow: ")]
    assert len(near) == 10 and "(step 19, rank 0)" in near[0]
    assert "90 more values are near overflow; --all prints them" in lines
    assert len([line for line in lines if "made a NaN" in line]) == 0, "nothing to say of each step"
