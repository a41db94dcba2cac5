"""Two results of float64, and what the rounding of their starts moves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aten_dump import compare
from aten_dump.dump import RankDump

X = torch.linspace(0.1, 3.0, 16)


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_a_mask_does_not_hide_what_is_done_to_scores(record: Callable[..., RankDump], fill: float) -> None:
    """Scores with a bias of the distance meet those without it behind the mask, where both are all but -1e9."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 24), torch.randn(2, 6, 8)

    def dump(kind: str) -> RankDump:
        def body() -> None:
            model.zero_grad()
            q, k, v = model(x).chunk(3, -1)
            scores = (q * 8**-0.5) @ k.transpose(-1, -2) if kind == "form" else q @ k.transpose(-1, -2) * 8**-0.5
            scores = scores + 0.3 * torch.arange(6.0) if kind == "bias" else scores
            scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), fill)
            (scores.softmax(-1) @ v).square().mean().backward()

        return record(body, model=model, data="tensor")

    plain, form, bias = map(dump, ("", "form", "bias"))
    assert compare(form, plain).exit_code == 0
    cause = compare(bias, plain).cause
    assert cause is not None and cause.row.place.call == "Aten.add.0.forward", cause


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_that_went_back_through_a_recurrence_have_the_errors_of_many_calls(
    record: Callable[..., RankDump], wrong: bool
) -> None:
    torch.manual_seed(0)
    scores, moves = torch.randn(4, 9, 5), nn.Linear(5, 5)

    def forward_algorithm(late: bool) -> None:
        """A conditional random field whose scores are added before the sum over paths, or after it."""
        moves.zero_grad()
        at = scores.clone().requires_grad_()
        known = at[:, 0]
        for step in range(1, 9):
            paths = known.unsqueeze(2) + moves.weight
            if late:
                known = paths.logsumexp(1) + at[:, step] * (1.00001 if wrong else 1)
            else:
                known = (paths + at[:, step].unsqueeze(1)).logsumexp(1)
        known.logsumexp(1).mean().backward()

    late, early = (
        record(lambda late=late: forward_algorithm(late), model=moves, data="tensor") for late in (True, False)
    )
    for found in (compare(late, early), compare(early, late)):
        assert found.exit_code == wrong, found.answer()


class Attention(nn.Module):
    """Its softmax is shifted by the greatest score, through which a gradient flows that is zero but for rounding."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.qkv = kind, nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        greatest = scores.amax(-1, keepdim=True)
        if self.kind == "detached":
            greatest = greatest.detach()
        exponents = (scores - greatest * (0.5 if self.kind == "halved" else 1.0)).exp()
        total = exponents.sum(-1, keepdim=True)
        if self.kind == "total detached":
            total = total.detach()
        if self.kind == "eps":
            total = total + 1e-5
        return (exponents / total) @ v


@pytest.mark.parametrize("wrong", ["", "total detached", "eps"])
def test_a_gradient_of_rounding_alone_is_no_difference(record: Callable[..., RankDump], wrong: str) -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))

    def dump(kind: str) -> RankDump:
        model = Attention(kind)
        return record(lambda: model(x).square().mean().backward(), model=model, data="tensor")

    one, other = dump(wrong or "plain"), dump("detached")
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == bool(wrong), found.cause


@pytest.mark.parametrize("wrong", ["", "scaled", "temperature"])
def test_a_sum_that_cancels_may_start_from_what_was_rounded(record: Callable[..., RankDump], wrong: str) -> None:
    """Distillation takes the logarithm of the teacher's softmax, or its log_softmax."""
    torch.manual_seed(0)
    student, teacher, x = nn.Linear(8, 3), nn.Linear(8, 3), torch.randn(6, 8)

    def in_parts() -> None:
        student.zero_grad()
        logits = teacher(x).detach() / 2
        p, q = logits.softmax(1), student(x).log_softmax(1)
        cross, entropy = (p * q).sum(1).mean(), (p * (logits * (2 if wrong == "temperature" else 1)).log_softmax(1))
        (entropy.sum(1).mean() * (1.00001 if wrong == "scaled" else 1) - cross).backward()

    def divergence() -> None:
        student.zero_grad()
        q = student(x).log_softmax(1)
        nn.functional.kl_div(q, (teacher(x).detach() / 2).softmax(1), reduction="batchmean").backward()

    one, other = (record(body, model=student, data="tensor") for body in (in_parts, divergence))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == bool(wrong), found.cause
