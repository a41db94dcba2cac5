"""Are values still the same after calls of the layout moved them?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.moved_values import Moves
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from aten_dump.dump.across_ranks.part_grids import Placement
from aten_dump.store import records as r
from tests.dump.across_ranks.ranks_of_a_step import wholes
from tests.dump.building import Builder, value

WHOLE = torch.arange(1.0, 9.0)
Change = Callable[[torch.Tensor], torch.Tensor]


def step(
    folder: Path,
    *,
    sources: int = 1,
    change: Change = lambda t: t,
    flags: int = 0,
    last: str = "c10d::all_gather_",
    shaped: tuple[int, ...] = (8,),
) -> AssembledRank:
    """Record on two ranks: exp makes a part (values 1, ...), a collective gathers it, relu reads the whole.

    Args:
        folder: of the dump.
        sources: results of exp that go into the collective.
        change: what the collective does to the whole on its way.
        flags: of the gathered value.
        last: the op that gathers.
        shaped: the shape of the gathered value.
    """
    ranks = {}
    for rank in range(2):
        b = Builder(folder, 0, rank)
        exp = b.op("aten", "aten::exp", "Aten", "exp", ("self",))
        made = []
        for n in range(sources):
            made.append(b.value((WHOLE * (n + 1)).chunk(2)[rank].clone()))
            b.call(exp, n=n, args=[value(b.value(torch.ones(4)))], outputs=value(made[-1]))
        given = [value(number) for number in made]
        whole = b.value(change(WHOLE * sources).view(shaped).clone(), flags=flags)
        gather = b.call(b.op("aten", last, "Distributed", "gather", ("input",)), args=given, outputs=value(whole))
        relu = b.op("aten", "aten::relu", "Aten", "relu", ("self",))
        b.call(relu, args=[value(whole)], outputs=value(b.value(torch.ones(8))))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    found = AssembledRank(wholes(ranks), {gather: "collective"})
    for number in made:
        settle(found, number, Placement("shard", 0), (8,))
    settle(found, whole, Placement("replica"), shaped)
    return found


def settle(rank: AssembledRank, id: int, placement: Placement, shape: tuple[int, ...]) -> None:
    found = rank.value_by_id(id)
    assert isinstance(found, AssembledValue)
    found.assembly.across(placement, shape)


def moved(rank: AssembledRank, read_data: bool = True) -> Moves:
    calls = [call for call in rank.calls if call.id not in rank.aside]
    moves = Moves(rank, frozenset(call.id for call in calls), read_data)
    moves.run(calls)
    return moves


def ids_of(rank: AssembledRank) -> tuple[int, int]:
    """Return the id of what exp made last and of what relu reads."""
    made = [call for call in rank.calls if call.op == "aten::exp"][-1].outputs
    (read,) = rank["Aten.relu.0.forward"].inputs[0]
    return made.id, read.id


def test_what_was_gathered_is_what_went_in(tmp_path: Path) -> None:
    rank = step(tmp_path)
    made, read = ids_of(rank)
    moves = moved(rank)
    assert (moves.aliases, moves.faults) == ({read: made}, [])


@pytest.mark.parametrize(("factor", "alias"), [(1 + 2**-23, True), (1.001, False)])
def test_rounding_of_a_sum_over_ranks_is_allowed(tmp_path: Path, factor: float, alias: bool) -> None:
    moves = moved(step(tmp_path, change=lambda t: t * factor))
    assert bool(moves.aliases) == alias and bool(moves.faults) != alias


def test_a_gather_that_went_wrong_is_a_fault(tmp_path: Path) -> None:
    rank = step(tmp_path, change=lambda t: t.roll(4))
    made, read = ids_of(rank)
    moves = moved(rank)
    (fault,) = moves.faults
    assert moves.aliases == {}
    assert (fault.value, fault.origin, fault.reader.name) == (read, made, "Aten.relu.0.forward")
    assert fault.moved_by.op == "c10d::all_gather_" and fault.found.error is not None
    assert fault.found.error > fault.limit > 0


def test_nan_on_the_way_is_a_fault(tmp_path: Path) -> None:
    moves = moved(step(tmp_path, change=lambda t: t.index_fill(0, torch.tensor(2), float("nan"))))
    assert moves.aliases == {} and len(moves.faults) == 1


def test_of_several_that_went_in_the_one_that_fits_is_taken(tmp_path: Path) -> None:
    """All are of one shape, as parameters of a layer that are gathered at once."""
    rank = step(tmp_path, sources=3)
    made, read = ids_of(rank)
    moves = moved(rank)
    assert (moves.aliases, moves.faults) == ({read: made}, [])
    other = moved(step(tmp_path / "other", sources=3, change=lambda t: t.roll(4)))
    assert (other.aliases, other.faults) == ({}, []), "nobody knows which of them it should be"


def test_without_a_collective_on_the_way_nothing_was_moved(tmp_path: Path) -> None:
    moves = moved(step(tmp_path, last="aten::view", change=lambda t: t.roll(4)))
    assert (moves.aliases, moves.faults) == ({}, [])


def test_another_shape_is_another_tensor(tmp_path: Path) -> None:
    moves = moved(step(tmp_path, shaped=(2, 4)))
    assert (moves.aliases, moves.faults) == ({}, [])


def test_undefined_memory_was_not_moved(tmp_path: Path) -> None:
    moves = moved(step(tmp_path, flags=r.UNDEFINED, change=lambda t: t.roll(4)))
    assert (moves.aliases, moves.faults) == ({}, [])


def test_what_cannot_be_read_is_neither(tmp_path: Path) -> None:
    moves = moved(step(tmp_path, change=lambda t: t.roll(4)), read_data=False)
    assert (moves.aliases, moves.faults) == ({}, [])


def test_a_value_that_the_program_made_stays_itself(tmp_path: Path) -> None:
    rank = step(tmp_path, last="aten::cat", change=lambda t: t.roll(4))
    moves = Moves(rank, frozenset(call.id for call in rank.lead.calls))
    moves.run(rank.calls)
    assert (moves.aliases, moves.faults) == ({}, [])


@pytest.mark.parametrize("kind", ["collective", "local op"])
def test_memory_gathered_anew_shows_what_was_seen_there_before(tmp_path: Path, kind: str) -> None:
    """A view of it, of another shape than all that went in, is the view of before; but not what the program computed there."""
    ranks = {}
    for rank in range(2):
        b = Builder(tmp_path, 0, rank)
        read, made = b.value(torch.ones(4)), b.value(WHOLE.chunk(2)[rank].clone())
        memory = WHOLE.clone()
        seen = [(b.value(memory, version=n), b.value(memory.view(2, 4).t(), version=n)) for n in (1, 2)]
        b.call(b.op("aten", "aten::exp", "Aten", "exp", ("self",)), args=[value(read)], outputs=value(made))
        gather = b.op("aten", "c10d::all_gather_", "Distributed", "gather", ("input",))
        relu = b.op("aten", "aten::relu", "Aten", "relu", ("self",))
        gathers = []
        for n, (whole, view) in enumerate(seen):
            gathers.append(b.call(gather, n=n, args=[value(made)], outputs=value(whole)))
            b.call(relu, n=n, args=[value(view)], outputs=value(b.value(torch.ones(4, 2))))
        b.finish()
        ranks[rank] = open_dump(tmp_path).rank(0, rank)
    rank = AssembledRank(wholes(ranks), {gathers[0]: "collective", gathers[1]: kind})
    settle(rank, made, Placement("shard", 0), (8,))
    before, after = (view for _, view in seen)
    for number in (before, after):
        settle(rank, number, Placement("replica"), (4, 2))
    assert moved(rank).aliases == ({after: before} if kind == "collective" else {})
