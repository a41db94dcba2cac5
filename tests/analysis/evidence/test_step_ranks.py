"""What is said of many steps and ranks alike is said once, with all of them named."""

from __future__ import annotations

from aten_dump.analysis.comparison import over_ranks, where, where_all
from aten_dump.analysis.evidence.findings import RankEvidence


def evidence(step: int, rank: int, *, baseline: tuple[int, int] | None = None, together: bool = False) -> RankEvidence:
    theirs = baseline or (step, rank)
    return RankEvidence(
        "t", "b", (step, theirs[0]), (rank, theirs[1]), "tensor", {}, (9, 9), {}, (), (), {}, {},
        together=(4, 1) if together else None,
    )  # fmt: skip


def test_a_step_and_rank_is_named() -> None:
    assert where(evidence(3, 7)) == "step 3 rank 7"
    assert where(evidence(3, 7, baseline=(0, 2))) == "step 3 against 0 rank 7 against 2"
    assert where(evidence(3, 0, together=True)) == "step 3, 4 ranks against 1"


def test_many_are_named_by_ranges() -> None:
    ranks = [evidence(0, rank) for rank in range(128) if rank != 64]
    assert where_all(ranks) == "step 0 ranks 0-63|65-127"
    assert where_all([*ranks, evidence(1, 3)]) == "step 0 ranks 0-63|65-127; step 1 rank 3"
    other = evidence(0, 5, baseline=(0, 9))
    assert where_all([*ranks, other]) == "step 0 ranks 0-63|65-127; step 0 rank 5 against 9"


def test_what_differs_from_rank_to_rank_is_told_of_each() -> None:
    said = [(evidence(0, 0), "a"), (evidence(0, 1), "b"), (evidence(0, 2), "a"), (evidence(1, 0), "a")]
    assert over_ranks(said) == [("step 0 ranks 0|2", "a"), ("step 0 rank 1", "b"), ("step 1 rank 0", "a")]
