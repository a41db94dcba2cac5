"""Steps and ranks of which the same is said are named together."""

from __future__ import annotations

from aten_dump.dump.shown.step_ranks import over_ranks, step_and_ranks


def test_ranks_are_named_by_ranges() -> None:
    assert step_and_ranks(0, [5]) == "step 0 rank 5"
    assert step_and_ranks("3 against 0", [2, 0, 1, 9]) == "step 3 against 0 ranks 0-2|9"


def test_what_is_said_of_many_is_said_once() -> None:
    said = [(0, rank, "b" if rank == 7 else "a") for rank in range(1000)]
    assert list(over_ranks([*said, (1, 3, "a")])) == [
        "step 0 ranks 0-6|8-999: a",
        "step 0 rank 7: b",
        "step 1 rank 3: a",
    ]
