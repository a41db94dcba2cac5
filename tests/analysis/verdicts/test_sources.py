"""Values from outside the step: equal, inherited from the step before, or another source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.dump import RankDump, Value
from tests.dump.building import Builder

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., RankDump]:
    """ranks(*tensors, versions=...): what a rank recorded of some values."""
    count = iter(range(100))

    def make(*tensors: torch.Tensor, versions: tuple[int, ...] = (), **options: Any) -> RankDump:
        b = Builder(tmp_path / str(next(count)))
        for number, tensor in enumerate(tensors):
            b.value(tensor, version=versions[number] if versions else 0, **options)
        return open_dump(b.finish()).rank(0, 0)

    return make


def values(rank: RankDump) -> list[Value]:
    return list(rank.values)


# -- what the step before left behind --------------------------------------------------------------------------------


def _moments(path: Path, change: str) -> Path:
    """Three steps with two moments of a weight; at the second step the change takes effect."""
    torch.manual_seed(0)
    weight, one, two = torch.randn(5, 5), torch.zeros(5, 5), torch.zeros(5, 5)
    older = weight
    batches = torch.randn(3, 4, 5)
    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump:
        for number, x in enumerate(batches):
            is_wrong = number == 1
            read = older if is_wrong and change == "an older copy" else weight
            first, second = (two, one) if is_wrong and change == "swapped" else (one, two)
            gradient = x.t() @ (x @ read).tanh()
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient * gradient, 0.1)
            older = weight.clone() if change in ("an older copy", "a copy that nobody reads") else weight
            weight.sub_(first / (second.abs().sqrt() + 0.1))
            dump.step()
    return path


@pytest.mark.parametrize(
    ("change", "slot"), [("swapped", "Aten.lerp_.0.forward input.0"), ("an older copy", "Aten.mm.0.forward input.1")]
)
def test_what_was_inherited_has_to_be_the_counterpart(change: str, slot: str, tmp_path: Path) -> None:
    paths = _moments(tmp_path / "changed", change), _moments(tmp_path / "plain", "")
    for target, baseline in (paths, paths[::-1]):
        found = compare(target, baseline)
        assert found.cause is not None, found.answer()
        row = found.cause.row
        assert (found.cause.kind, row.place.step, f"{row.place.call} {row.slot}") == ("source", 1, slot)
        assert "but it is another tensor than in the baseline" in found.cause.text


def test_copies_that_nobody_reads_are_none_of_it(tmp_path: Path) -> None:
    found = compare(_moments(tmp_path / "copied", "a copy that nobody reads"), _moments(tmp_path / "plain", ""))
    assert found.exit_code == 0, found.answer()
