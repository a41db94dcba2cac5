"""What each rank must get of a collective, for every kind of it."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.meetings.collective_reference import Asked, got

ONE, TWO = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 6.0, 7.0, 8.0])


def wanted(name: str, mine: int, reduction: str = "", root: int | None = None, splits: object = ((), ())) -> object:
    found = got(name, [[ONE], [TWO]], Asked(mine, root, reduction, splits))  # type: ignore[arg-type]
    return None if found is None else [tensor.tolist() for tensor in found]


@pytest.mark.parametrize(
    ("name", "mine", "reduction", "root", "delivered"),
    [
        ("allreduce_", 1, "sum", None, [[6, 8, 10, 12]]),
        ("all_reduce", 0, "avg", None, [[3, 4, 5, 6]]),
        ("allreduce_coalesced_", 0, "max", None, [[5, 6, 7, 8]]),
        ("reduce_", 0, "product", 0, [[5, 12, 21, 32]]),
        ("reduce_", 1, "product", 0, None),
        ("broadcast_", 0, "", 1, [[5, 6, 7, 8]]),
        ("recv_", 1, "", 0, [[1, 2, 3, 4]]),
        ("allgather_", 1, "", None, [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("gather_", 1, "", 1, [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("gather_", 0, "", 1, None),
        ("_allgather_base_", 0, "", None, [[1, 2, 3, 4, 5, 6, 7, 8]]),
        ("all_gather_into_tensor_out", 0, "", None, [[1, 2, 3, 4, 5, 6, 7, 8]]),
        ("_reduce_scatter_base_", 1, "sum", None, [[10, 12]]),
        ("reduce_scatter_tensor", 0, "avg", None, [[3, 4]]),
        ("alltoall_base_", 1, "", None, [[3, 4, 7, 8]]),
        ("allreduce_", 0, "", None, None),
        ("something_new", 0, "sum", None, None),
    ],
)
def test_what_a_rank_must_get(name: str, mine: int, reduction: str, root: int | None, delivered: object) -> None:
    assert wanted(name, mine, reduction, root) == delivered


def test_parts_may_be_of_unlike_sizes() -> None:
    assert wanted("all_to_all_single", 0, splits=((1, 3), (2, 2))) == [[1, 5, 6]]


def test_lists_of_tensors_are_taken_apart() -> None:
    parts = [[ONE[:2], ONE[2:]], [TWO[:2], TWO[2:]]]
    assert [t.tolist() for t in got("reduce_scatter_", parts, Asked(1, None, "sum", ())) or []] == [[10, 12]]
    assert [t.tolist() for t in got("alltoall_", parts, Asked(0, None, "", ())) or []] == [[1, 2], [5, 6]]
    assert [t.tolist() for t in got("scatter_", [[], parts[1]], Asked(0, 1, "", ())) or []] == [[5, 6]]


def test_ranks_that_give_unlike_numbers_of_tensors_meet_in_nothing_known() -> None:
    assert got("allreduce_", [[ONE], [ONE, TWO]], Asked(0, None, "sum", ())) is None
