"""The cause of a difference between two layouts of the same work is not what lays it out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare

WIDTH, CLASSES = 12, 5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.wide = nn.Embedding(30, WIDTH), nn.Linear(3, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor, wide: Tensor) -> Tensor:
        x = self.words(ids).mean(1) + self.wide(wide)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.head(x)  # type: ignore[no-any-return]


IDS = torch.arange(4 * 7).mul(11).remainder(30).reshape(4, 7)
WIDE = torch.arange(12.0).cos().reshape(4, 3)
LABELS = torch.tensor([0, 3, 1, 4])
Step = Callable[[Model], None]


def recorded(step: Step, path: Path) -> Path:
    model = Model()
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model):
        step(model)
    return path


def cause(target: Step, baseline: Step, folder: Path) -> tuple[str, str]:
    """Return the line of the first cause, and what is said of it."""
    found = compare(recorded(target, folder / "t"), recorded(baseline, folder / "b"))
    assert found.cause is not None, found.answer()
    line = int(found.cause.row.place.source.partition(":")[2].split()[0])
    return Path(__file__).read_text().splitlines()[line - 1], found.cause.text


def scores(model: Model, order: Tensor | None = None, *, labels: bool = True, back: bool = True) -> None:
    with torch.no_grad():
        if order is None:
            F.cross_entropy(model(IDS.clone(), WIDE.clone()), LABELS.clone(), reduction="none").mul(2)
            return
        logits = model(IDS[order], WIDE[order])
        losses = F.cross_entropy(logits, LABELS[order] if labels else LABELS.clone(), reduction="none")  # the loss
        losses = losses[order.argsort() if back else order]  # put back
        losses.mul(2)


def batch(model: Model) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    F.cross_entropy(model(IDS.clone(), WIDE.clone()), LABELS.clone()).backward()
    optimizer.step()


def micro_batches(model: Model, shares: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for at in (0, 2):
        rows = slice(at, at + 2)
        loss = F.cross_entropy(model(IDS[rows], WIDE[rows]), LABELS[rows])
        loss = loss / shares  # its share
        loss.backward()
    optimizer.step()


def workers(model: Model, own: int | None) -> None:
    """Average the gradients of two workers by hand, of one parameter not."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parameters = list(model.parameters())
    losses = [F.cross_entropy(model(IDS[at : at + 2], WIDE[at : at + 2]), LABELS[at : at + 2]) for at in (0, 2)]
    first, second = (torch.autograd.grad(loss, parameters) for loss in losses)
    for number, (p, one, other) in enumerate(zip(parameters, first, second, strict=True)):
        p.grad = one if number == own else (one + other) / 2  # the mean
    optimizer.step()


ORDER = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize(
    "step", [partial(scores, order=ORDER), partial(micro_batches, shares=2), partial(workers, own=None)]
)
def test_honest_layouts_agree(step: Step, tmp_path: Path) -> None:
    baseline = scores if step.func is scores else batch  # type: ignore[attr-defined]
    found = compare(recorded(step, tmp_path / "t"), recorded(baseline, tmp_path / "b"))
    assert found.cause is None, found.answer()


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (partial(scores, order=ORDER, labels=False), "# the loss"),
        (partial(scores, order=ORDER, back=False), "# put back"),
    ],
)
def test_rows_in_another_order_are_no_cause(step: Step, line: str, tmp_path: Path) -> None:
    assert cause(step, scores, tmp_path)[0].endswith(line)


def test_a_share_of_the_loss_that_is_not_its_own_is_the_cause(tmp_path: Path) -> None:
    line, text = cause(partial(micro_batches, shares=4), batch, tmp_path)
    assert line.endswith("# its share") and "each gradient is exactly 1/2 times the baseline's" in text


def test_a_gradient_of_one_worker_alone_is_said_to_be_a_term(tmp_path: Path) -> None:
    line, text = cause(partial(workers, own=4), batch, tmp_path)
    assert line.endswith("# the mean") and "is one of the 2 terms that the baseline's is the mean of" in text
