"""The evaluation computes what the program computes in float64, memory shared as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump.analysis.evaluation.evaluation import JITTER, Choices, EvaluatedStep, Evaluation, Shared
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.signatures.signature import is_same, sign

X = torch.linspace(-2, 2, 60).view(5, 12)


def evaluated(recording: Any, **options: Any) -> Evaluation:
    rank = recording if hasattr(recording, "calls") else recording.step(0).rank(0)
    found = Evaluation(EvaluatedStep(DataFlow(rank, "aten"), ()), Shared(), **{"leads": True, **options})
    found.run()
    return found


def result_of(found: Evaluation, name: str, slot: str = "output.0") -> Any:
    return found.signatures[found.flow.rank.value(f"{name}.{slot}").id]


def test_each_op_runs_in_float64_on_what_the_ones_before_made(record: Callable[..., Any]) -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp().sum(1, keepdim=True) / 7).log().matmul(x[:1]).tanh()

    found = evaluated(record(lambda: program(X)))
    assert is_same(result_of(found, "Aten.tanh.0.forward"), sign(program(X.double())))
    assert not found.unproven


def test_writes_through_views_are_seen_by_the_memory_that_they_are_of(record: Callable[..., Any]) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        row = y[1]
        row.mul_(3)
        y.view(-1)[::2].add_(row.sum())
        y.t()[0].copy_(x[0, 0].expand(5))
        return y * 2

    found = evaluated(record(lambda: program(X)))
    assert is_same(result_of(found, "Aten.mul.1.forward"), sign(program(X.double())))


def test_memory_is_freed_when_nobody_looks_at_it_again(record: Callable[..., Any]) -> None:
    def program() -> Tensor:
        y = X
        for _ in range(200):
            y = y.cos()
        return y

    rank = record(program)
    step = EvaluatedStep(DataFlow(rank, "aten"), ())
    frees = sorted(len(plan.frees) for plan in step.plans)
    assert frees[-1] <= 2 and sum(frees) >= 200


def test_draws_are_sources_with_their_recorded_contents(record: Callable[..., Any]) -> None:
    def program() -> Tensor:
        return torch.rand(5, 12).add(X)

    rank = record(program)
    found = evaluated(rank)
    drawn = rank.tensor("Aten.rand.0.forward.output.0")
    assert is_same(result_of(found, "Aten.add.0.forward"), sign(drawn.double() + X.double()))
    assert list(found.unproven.values()) == ["it draws random numbers"]


def test_a_choice_is_the_recorded_one_where_float64_would_choose_another(record: Callable[..., Any]) -> None:
    near = torch.tensor([1.0, 1.0 + 1e-9])  # equal in float32: the program takes the first

    def program() -> Tensor:
        summed = torch.stack([near[0] + 1e-8, near[1]])
        return X[summed.argmax() + 1]

    rank = record(program)
    found = evaluated(rank)
    chosen = rank.tensor("Aten.argmax.0.forward.output.0")
    assert is_same(result_of(found, "Aten.argmax.0.forward"), sign(chosen))


def test_jitter_shows_what_rounding_alone_decides(record: Callable[..., Any]) -> None:
    def program() -> Tensor:
        total = (X * 1.7).sum()
        return (total - (X * 1.7).flip(0, 1).sum()).add(X)

    rank = record(program)
    noise = evaluated(rank).noise_beside(evaluated(rank, jitter=JITTER))
    cancelled, whole = (rank.value(f"Aten.{name}.0.forward.output.0").id for name in ("sub", "sum"))
    scale = rank.tensor("Aten.sum.0.forward.output.0").abs() + X.abs().sum()
    assert 1e-15 < noise[cancelled] < 1e-9 * scale
    assert noise[whole] < 1e-9 * scale


def test_a_model_and_its_backward(record: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def loss(module: nn.Module, x: Tensor) -> Tensor:
        return module(x).square().mean()

    rank = record(lambda: loss(model, X).backward(), model=model)
    wide = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).double()
    wide.load_state_dict(model.state_dict())
    loss(wide, X.double()).backward()
    found = evaluated(rank)
    for name, parameter in wide.named_parameters():
        value = rank.gradients[name]
        writer = found.flow.writer(value)
        known = found.signatures.get(value.id) or found.signatures[writer[2].id]  # type: ignore[index]
        assert parameter.grad is not None
        assert abs(known.norm - float(parameter.grad.norm())) <= 1e-9 * known.norm, name


def test_the_largest_number_of_the_dtype_of_the_program_stands_for_infinity(record: Callable[..., Any]) -> None:
    def program(dtype: torch.dtype, factor: float = 1.0) -> Callable[[], object]:
        x = X.to(dtype)
        return lambda: (x @ x.T).masked_fill(torch.eye(5).bool(), torch.finfo(dtype).min * factor)

    found = [
        result_of(evaluated(record(program(dtype, factor))), "Aten.masked_fill.0.forward")
        for dtype, factor in ((torch.float32, 1.0), (torch.float16, 1.0), (torch.float16, 0.5))
    ]
    assert abs(found[0].norm - found[1].norm) < 1e-3 * found[0].norm, "but for what x is rounded to"
    assert abs(found[0].norm - found[2].norm) > 0.1 * found[0].norm


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_moved_to_measure_rounding_chooses_as_it_did(leads: bool, record: Callable[..., Any]) -> None:
    """The backward of a maximum divides by how many elements are equal to it: by 0, if none is any more."""
    groups = torch.tensor([0, 1, 0, 1, 0])[:, None].expand(5, 12)

    def program() -> None:
        x = X.clone().requires_grad_()
        (x * 3).new_zeros(2, 12).scatter_reduce(0, groups, x * 3, "amax", include_self=False).square().sum().backward()

    recording = record(program)
    noise = evaluated(recording, leads=leads).noise_beside(evaluated(recording, leads=leads, jitter=JITTER))
    assert noise and all(math.isfinite(one) for one in noise.values())


def test_a_choice_is_known_by_what_it_was_made_from() -> None:
    """Of the same scores a coarse dtype chooses otherwise, where two are equal in it."""
    choices, fine, coarse = Choices(), frozenset({(3, "float32")}), frozenset({(3, "bfloat16")})
    choices.add("contents", fine, None)
    assert not choices.differ
    choices.add("contents", coarse, torch.tensor([1]))
    assert choices.differ and choices.find("contents", fine) is None
    assert choices.find("contents", coarse) is not None
    assert choices.find("contents", frozenset({(4, "float32")})) is None, "two were made, and of none of these values"
    choices.add("others", fine, torch.tensor([2]))
    assert choices.find("others", frozenset({(4, "float32")})) is not None, "a program may be written otherwise"
