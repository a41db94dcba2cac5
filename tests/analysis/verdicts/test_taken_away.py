"""What a program takes away: what its modules return is compared like a loss, in inference and in evaluations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import compare
from tests.analysis.by_distance.steps import record, seeded
from tests.analysis.transformer import OtherDevice
from tests.sampling import one_in

from .test_left_behind import both_ways

Last = Callable[[torch.Tensor], object]


class Net(nn.Module):
    """What `last` makes of its logits is what it returns."""

    def __init__(self, last: Last) -> None:
        super().__init__()
        self.last, self.first, self.norm, self.head = last, nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> object:
        return self.last(self.head(self.norm(nn.functional.gelu(self.first(x)))))


def same(z: torch.Tensor) -> torch.Tensor:
    return z


def inference(
    path: Path,
    last: Last = same,
    behind: Last = same,
    *,
    mode: Callable[[], object] = torch.no_grad,
    wrap: bool = False,
    device: OtherDevice | None = None,
    **config: object,
) -> Path:
    torch.manual_seed(0)
    model: nn.Module = Net(last)
    model = nn.Sequential(model) if wrap else model

    def body(step: int) -> None:
        with mode():  # type: ignore[attr-defined]
            behind(model(seeded(6, 8, seed=step)))

    return record(path, body, model, steps=2, device=device, **config)


# bug: (what it returns, what is right, the ops that may be named)
BUGS: dict[str, tuple[Last, Last, tuple[str, ...]]] = {
    "temperature": (lambda z: z / 1.5, same, ("div",)),
    "soft cap": (lambda z: 2 * torch.tanh(z / 2), same, ("div",)),
    "softmax": (lambda z: z.softmax(-1), same, ("_softmax", "softmax")),
    "in place": (lambda z: z.mul_(1.1), same, ("mul_",)),
    "argmin": (lambda z: z.argmin(-1), lambda z: z.argmax(-1), ("arg",)),
    "sum": (lambda z: z.sum(-1), lambda z: z.mean(-1), ("sum", "mean")),
    "shape": (lambda z: z.topk(2).indices, lambda z: z.mean(-1), ("topk", "mean")),
    "one of two": (
        lambda z: {"z": z, "p": z.sigmoid()},
        lambda z: {"z": z, "p": z.softmax(-1)},
        ("sigmoid", "_softmax", "softmax"),
    ),
    "other half": (lambda z: z.chunk(2, -1)[0], lambda z: z.chunk(2, -1)[1], ("split", "chunk")),
}


@pytest.mark.parametrize(
    "mode", one_in(3, [torch.no_grad, torch.inference_mode, torch.enable_grad]), ids=["no_grad", "inf", "grad"]
)
@pytest.mark.parametrize("bug", BUGS)
def test_a_model_that_ends_otherwise_is_found(tmp_path: Path, bug: str, mode: Callable[[], object]) -> None:
    last, right, ops = BUGS[bug]
    one, other = inference(tmp_path / "one", last, mode=mode), inference(tmp_path / "other", right, mode=mode)
    for found in both_ways(one, other):
        assert found.exit_code == 1, found.answer()
        assert found.cause is not None
        assert found.cause.kind == ("rewired" if bug == "other half" else "region"), found.answer()
        assert found.cause.row.place.op.startswith(tuple(f"aten::{op}" for op in ops)), found.answer()
        assert all(evidence.findings for evidence in found.ranks)


HONEST: dict[str, tuple[Last, Last]] = {
    "nothing else": (same, same),
    "mean by hand": (lambda z: z.mean(-1), lambda z: z.sum(-1) / 4),
    "softmax by hand": (lambda z: z.softmax(-1), lambda z: z.exp() / z.exp().sum(-1, keepdim=True)),
    "largest": (lambda z: z.argmax(-1), lambda z: z.max(-1).indices),
    "views": (lambda z: z.t(), lambda z: z.transpose(0, 1)),
    "empty": (lambda z: (z, torch.empty(2)), lambda z: (z, torch.empty(2))),
}


@pytest.mark.parametrize("form", HONEST)
def test_a_model_that_is_written_otherwise_agrees(tmp_path: Path, form: str) -> None:
    one, other = (inference(tmp_path / str(n), last, wrap=bool(n)) for n, last in enumerate(HONEST[form]))
    for found in both_ways(one, other):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("config", [{}, {"level": "module"}, {"level": "api"}, {"data": "statistic"}], ids=str)
def test_noise_of_kernels_is_no_difference(tmp_path: Path, config: dict[str, str]) -> None:
    one = inference(tmp_path / "one", device=OtherDevice(), **config)
    found = compare(one, inference(tmp_path / "other", **config))
    assert found.exit_code == 0, found.answer()


def test_what_the_program_does_with_a_result_is_no_part_of_the_model(tmp_path: Path) -> None:
    inside = inference(tmp_path / "inside", lambda z: z.log_softmax(-1))
    outside = inference(tmp_path / "outside", behind=lambda z: z.log_softmax(-1))
    plain = inference(tmp_path / "plain")
    logging = inference(tmp_path / "logging", behind=lambda z: (z.norm(), z.max().item()))
    for pair in ((inside, outside), (plain, logging)):
        for found in both_ways(*pair):
            assert found.exit_code == 0, found.answer()
    for found in both_ways(inside, logging):
        assert found.cause is not None and "log_softmax" in found.cause.row.place.op


def test_an_evaluation_whose_number_is_only_returned(tmp_path: Path) -> None:
    """Both sides make a number of what the model returned: nobody is accused, or the two calls side by side."""

    def rate(z: torch.Tensor) -> torch.Tensor:
        return (z.argmax(-1) == 0).float().mean()

    def count(z: torch.Tensor) -> torch.Tensor:
        return (z.argmax(-1) == 0).float().sum()

    def by_hand(z: torch.Tensor) -> torch.Tensor:
        return (z.argmax(-1) == 0).float().sum() / 6

    paths = {f.__name__: inference(tmp_path / f.__name__, behind=f) for f in (rate, count, by_hand)}
    for found in both_ways(paths["rate"], paths["count"]):
        assert found.exit_code == 1, found.answer()
        if found.cause is None:
            assert "No op is to blame by itself" in found.answer()
        else:
            row = found.cause.row
            assert row.target is not None and row.baseline is not None, "neither of the two alone"
            assert {row.target.op, row.baseline.op} == {"aten::mean", "aten::sum"}, found.answer()
    for found in both_ways(paths["rate"], paths["by_hand"]):
        assert found.exit_code == 0, found.answer()


def test_a_result_of_which_one_side_makes_another_is_no_pass(tmp_path: Path) -> None:
    """Does the program go on to a softmax, or only log it? Nobody is accused."""
    plain, more = inference(tmp_path / "plain"), inference(tmp_path / "more", behind=lambda z: z.softmax(-1))
    for found in both_ways(plain, more):
        assert found.exit_code == 2 and found.cause is None
        assert [evidence.unknown_ends for evidence in found.ranks] == [("result (Aten._softmax.0.forward)",)] * 2
    taken_as_number = inference(tmp_path / "number", behind=lambda z: z.softmax(-1).max().item())
    for found in both_ways(plain, taken_as_number):
        assert found.exit_code == 0, found.answer()


def evaluations(path: Path, *seeds: int) -> Path:
    torch.manual_seed(0)
    model, batches = Net(same), [seeded(6, 8, seed=seed) for seed in seeds]

    def body(step: int) -> None:
        with torch.no_grad():
            for batch in batches:
                model(batch)

    return record(path, body, model)


def test_what_one_side_alone_evaluates_is_its_own_affair(tmp_path: Path) -> None:
    more, fewer = evaluations(tmp_path / "more", 1, 1, 2), evaluations(tmp_path / "fewer", 1, 2)
    swapped = evaluations(tmp_path / "swapped", 2, 1)
    for one, other in ((more, fewer), (swapped, fewer)):
        for found in both_ways(one, other):
            assert found.exit_code == 0, found.answer()


def test_a_result_that_is_another_call_s_is_a_difference(tmp_path: Path) -> None:
    right = evaluations(tmp_path / "right", 1, 2)
    for seeds in ((1, 1), (2, 2), (1, 1, 3)):
        for found in both_ways(evaluations(tmp_path / str(seeds), *seeds), right):
            assert found.exit_code == 1, found.answer()


class TwoHeads(nn.Module):
    def __init__(self, crossed: bool) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.crossed = crossed

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(x).relu()
        one, other = self.one(hidden), self.other(hidden)
        return (other, one) if self.crossed else (one, other)


def test_results_that_a_module_returns_crosswise_are_a_difference(tmp_path: Path) -> None:
    def heads(name: str, crossed: bool) -> Path:
        torch.manual_seed(0)
        model, batch = TwoHeads(crossed), seeded(6, 8, seed=1)

        def body(step: int) -> None:
            with torch.no_grad():
                model(batch)

        return record(tmp_path / name, body, model)

    for found in both_ways(heads("crossed", True), heads("right", False)):
        assert found.exit_code == 1, found.answer()


# -- the state of a recurrent network -------------------------------------------------------------------------------


def in_chunks(path: Path, *sizes: int, lost: str = "") -> Path:
    """Record a recurrent network that is given a sequence in chunks, with the state between them."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"r": nn.LSTM(4, 6, batch_first=True), "head": nn.Linear(6, 2)})

    def body(step: int) -> None:
        state = None
        for chunk in seeded(3, 7, 4).split(sizes, 1):
            out, state = model["r"](chunk, state)
            if lost == "cell":
                state = state[0], torch.zeros_like(state[1])
            if lost == "gradient":
                state = state[0].detach(), state[1].detach()
        model["head"](out[:, -1]).square().mean().backward()

    return record(path, body, model)


@pytest.mark.parametrize("lost", ["", "cell", "gradient"])
def test_the_state_that_nobody_reads_is_that_of_the_last_chunk(lost: str, tmp_path: Path) -> None:
    for found in both_ways(in_chunks(tmp_path / "chunks", 4, 3, lost=lost), in_chunks(tmp_path / "whole", 7)):
        assert found.exit_code == bool(lost), found.answer()
