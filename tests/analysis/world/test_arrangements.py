"""How pieces on ranks make up one tensor is found from their contents."""

from __future__ import annotations

import torch

from aten_dump.analysis.world.arrangements import arranged_rows, arrangements
from aten_dump.analysis.world.groups import Group, match

WHOLE = torch.arange(48, dtype=torch.float64).reshape(6, 8)


def group(*pieces: torch.Tensor, before: tuple[torch.Tensor, ...] = ()) -> Group:
    return Group("w", {}, dict(enumerate(pieces)), {}, dict(enumerate(before)))


def test_pieces_are_cut_out_as_they_were_joined() -> None:
    pieces = dict(enumerate(WHOLE.split([4, 2])))
    (found,) = [way for way in arrangements(pieces) if way.shape == (6, 8)]
    assert torch.equal(found.join(pieces), WHOLE)
    assert all(torch.equal(found.cut(WHOLE, rank), piece) for rank, piece in pieces.items())


def test_shards_along_either_dimension_are_the_whole() -> None:
    assert match(group(*WHOLE.chunk(2)), group(WHOLE)) is not None
    assert match(group(WHOLE), group(*WHOLE.chunk(4, 1))) is not None
    assert match(group(*WHOLE.chunk(2)), group(*WHOLE.chunk(2, 1))) is not None, "neither side has the whole"


def test_replicas_of_shards_are_the_whole() -> None:
    one, two = WHOLE.chunk(2)
    assert match(group(one, two, one, two), group(WHOLE)) is not None
    assert match(group(one, one, two, two), group(WHOLE)) is not None


def test_one_wrong_replica_is_a_difference() -> None:
    assert match(group(WHOLE, WHOLE), group(WHOLE)) is not None
    assert match(group(WHOLE, WHOLE + 1), group(WHOLE)) is None
    one, two = WHOLE.chunk(2)
    assert match(group(one, two, one, two + 1), group(WHOLE)) is None


def test_shards_on_the_wrong_ranks_are_a_difference_where_memory_says_which_they_are() -> None:
    one, two = WHOLE.chunk(2)
    began = (one, two)
    assert match(group(one + 5, two + 5, before=began), group(WHOLE + 5, before=(WHOLE,))) is not None
    assert match(group(two + 5, one + 5, before=began), group(WHOLE + 5, before=(WHOLE,))) is None


def test_multiples_are_a_difference() -> None:
    assert match(group(*(2 * WHOLE).chunk(2)), group(WHOLE)) is None


def test_rows_lie_anywhere() -> None:
    pieces = {0: WHOLE[[0, 2, 4]], 1: WHOLE[[1, 3, 5]]}
    found = arranged_rows(pieces, WHOLE, 1e-9)
    assert found is not None
    assert torch.equal(found.join(pieces), WHOLE)
    assert arranged_rows({0: WHOLE[[0, 2, 4]], 1: WHOLE[[1, 3, 4]]}, WHOLE, 1e-9) is None, "a row is missing"
