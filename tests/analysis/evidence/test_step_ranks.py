"""What is said of many steps and ranks alike is said once, with all of them named."""

from __future__ import annotations

from aten_dump.analysis.compare import Comparison
from aten_dump.analysis.evidence.findings import Finding, Place, RankEvidence, Row
from aten_dump.analysis.evidence.step_ranks import told_together, where, where_all


def evidence(
    step: int,
    rank: int,
    *,
    baseline: tuple[int, int] | None = None,
    together: bool = False,
    wrong: str = "",
    note: str = "",
) -> RankEvidence:
    theirs = baseline or (step, rank)
    place = Place(step, rank, 1, wrong, "aten::mul", "aten", "forward", "", "", "", "")
    findings = (Finding("op", Row(place, place, "order", "output", "different"), "it is wrong", "", (1, 1)),)
    return RankEvidence(
        "t", "b", (step, theirs[0]), (rank, theirs[1]), "tensor", {}, (9, 9), {}, (), findings if wrong else (), {}, {},
        notes=(note,) if note else (), together=(4, 1) if together else None,
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
    assert told_together(said) == [("step 0 ranks 0|2", "a"), ("step 0 rank 1", "b"), ("step 1 rank 0", "a")]


def test_an_answer_of_a_thousand_ranks_is_as_long_as_what_there_is_to_say() -> None:
    found = Comparison(
        "t", "b", tuple(evidence(0, rank, wrong="Aten.mul.3.forward" if rank > 9 else "", note="it ended") for rank in range(1000))
    )  # fmt: skip
    answer = found.answer()
    assert "  step 0 ranks 10-999: first cause Aten.mul.3.forward output" in answer
    assert "  no cause in step 0 ranks 0-9" in answer
    assert "step 0 ranks 0-999: proven for 0 of 0 calls" in answer
    assert "Note: step 0 ranks 0-999: it ended" in answer
    assert len(answer.splitlines()) < 12 and len(answer) < 2000
    alone = Comparison("t", "b", (evidence(0, 0, note="it ended"),))
    assert "Note: it ended" in alone.answer()
