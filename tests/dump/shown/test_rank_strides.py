"""Sizes and strides of the ranks of a group, as a mesh lays them out."""

from __future__ import annotations

import random

import pytest

from aten_dump.dump.shown.rank_strides import strides_of, strides_text
from aten_dump.dump.shown.step_ranks import named


def laid_out(strides: tuple[tuple[int, int], ...], first: int) -> list[int]:
    ranks = [first]
    for size, stride in strides:
        ranks = [rank + stride * n for n in range(size) for rank in ranks]
    return sorted(ranks)


@pytest.mark.parametrize(
    ("strides", "text"),
    [
        (((8, 1),), "8 ranks next to one another"),
        (((16, 8),), "16 ranks 8 apart"),
        (((4, 1), (2, 32)), "4 ranks next to one another, 2 times, 32 apart"),
        (((2, 2), (3, 8), (2, 64)), "2 ranks 2 apart, 3 times, 8 apart, 2 times, 64 apart"),
    ],
)
def test_ranks_of_a_mesh_give_its_sizes_and_strides(strides: tuple[tuple[int, int], ...], text: str) -> None:
    assert strides_of(laid_out(strides, first=5)) == strides
    assert strides_text(strides) == text


def test_what_is_found_makes_up_the_ranks_again_and_disorder_is_none() -> None:
    draw = random.Random(4)
    for _ in range(500):
        ranks = sorted(draw.sample(range(12), draw.randint(2, 8)))
        found = strides_of(ranks)
        assert not found or laid_out(found, ranks[0]) == ranks
    assert strides_of([0, 1, 3]) == strides_of([0, 1, 2, 8, 9, 11]) == strides_of([3]) == ()


def test_many_ranks_of_one_stride_are_their_ends() -> None:
    assert named("rank", range(0, 1024, 8)) == "ranks 0|8|...|1016"
    assert named("rank", range(0, 24, 8)) == "ranks 0|8|16"
    assert named("rank", [0, 2, 4, 6, 8, 10, 13]) == "ranks 0|2|4|6|8|10|13", "nothing is left out of disorder"
