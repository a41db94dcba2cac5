"""All steps and ranks together: what is said of them, and that no more is said than was shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evidence.findings import Finding, Place, RankEvidence, Row


def evidence(rank: int, *, wrong: str = "", note: str = "") -> RankEvidence:
    place = Place(0, rank, 1, wrong, "aten::mul", "aten", "forward", "", "", "", "")
    findings = (Finding("op", Row(place, place, "order", "output", "different"), "it is wrong", "", (1, 1)),)
    return RankEvidence(
        "t", "b", (0, 0), (rank, rank), "tensor", {}, (9, 9), {}, (), findings if wrong else (), {}, {},
        notes=(note,) if note else (),
    )  # fmt: skip


def test_an_answer_of_a_thousand_ranks_is_as_long_as_what_there_is_to_say() -> None:
    wrong = "Aten.mul.3.forward"
    ranks = tuple(evidence(rank, wrong=wrong if rank > 9 else "", note="it ended") for rank in range(1000))
    answer = Comparison("t", "b", ranks).answer()
    assert "  step 0 ranks 10-999: first cause Aten.mul.3.forward output" in answer
    assert "  no cause in step 0 ranks 0-9" in answer
    assert "step 0 ranks 0-999: proven for 0 of 0 calls" in answer
    assert "Note: step 0 ranks 0-999: it ended" in answer
    assert len(answer.splitlines()) < 12 and len(answer) < 2000


def test_a_note_on_the_only_rank_needs_no_name_of_it() -> None:
    assert "Note: it ended" in Comparison("t", "b", (evidence(0, note="it ended"),)).answer()


@pytest.mark.parametrize(
    ("data", "said"),
    [("full", "The dumps agree: both compute the same"), ("statistic", "The dumps agree as far as their data tell")],
)
def test_what_was_only_estimated_is_not_said_to_be_the_same(tmp_path: Path, data: str, said: str) -> None:
    """By statistics alone no call is proven."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for name, weight in (("a", x), ("b", x.t().contiguous().t())):
        with DumpMode(DumpConfig(tmp_path / name, data=data)):
            (weight * 3).exp().sum(0).mul(2).tanh()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.exit_code == 0 and found.headline.startswith(said)
