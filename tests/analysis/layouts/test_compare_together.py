"""All ranks of each side put together, and what is said of the ranks themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import MissingDataError, open_dump
from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.evidence.findings import RankEvidence
from aten_dump.analysis.layouts.compare_together import (
    assemble,
    compare_task,
    compare_together,
    correspondence,
    count_aside,
    gradients,
    layout_notes,
    slots_of,
)
from aten_dump.analysis.tasks import Settings, Task
from aten_dump.store import records as r
from tests.dump.building import Builder, value

WHOLE = torch.linspace(0.5, 4.0, 8)


class Rank:
    """Calls of one rank, by hand."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.b = Builder(folder, 0, rank)
        self.b.records[0] = self.b.records[0]._replace(world_size=ranks)

    def op(self, op: str, given: list[int], result: torch.Tensor, **options: Any) -> int:
        name = op.partition("::")[2].partition(".")[0]
        made = self.b.value(result.clone())
        number = self.b.op("aten", op, "Aten" if op.startswith("aten") else "Distributed", name, ("self",))
        self.b.call(number, args=[value(v) for v in given], outputs=value(made), **options)
        return made


def program(
    folder: Path,
    ranks: int,
    *,
    wrong: int | None = None,
    lost: tuple[int, ...] = (),
    gathers: bool = True,
    done: bool = True,
) -> str:
    """Record log of a part of the data, on each rank, then the gathered whole, and its square."""
    for rank, part in enumerate(WHOLE.chunk(ranks)):
        if rank in lost:
            continue
        made = Rank(folder, rank, ranks)
        log = made.op("aten::log", [made.b.value(part.clone())], part.log() * (1.02 if rank == wrong else 1.0))
        whole = WHOLE.log()
        if wrong is not None:
            whole = torch.cat([p.log() * (1.02 if n == wrong else 1.0) for n, p in enumerate(WHOLE.chunk(ranks))])
        gathered = made.op("c10d::_allgather_base_", [log], whole) if gathers and ranks > 1 else log
        made.op("aten::square", [gathered], whole.square())
        made.b.finish(commit=done or rank == 0)
    return str(folder)


def compared(target: str, baseline: str, **changes: Any) -> RankEvidence:
    return compare_task(Task(target, baseline, None, (0, 0), (0, 0), Settings(), together=True, **changes))


def test_two_ranks_against_one(tmp_path: Path) -> None:
    found = compared(program(tmp_path / "two", 2), program(tmp_path / "one", 1))
    assert (found.findings, found.together, found.incomplete, found.notes) == ((), (2, 1), False, ())
    assert found.count("different") == 0 and found.count("same") + found.count("within") > 0
    assert found.aside == {"collectives": 1} and found.count("layout") == 1
    assert found.paired["Aten.log.0.forward"] == "Aten.log.0.forward"


def test_and_the_other_way_round(tmp_path: Path) -> None:
    found = compared(program(tmp_path / "one", 1), program(tmp_path / "two", 2))
    assert (found.findings, found.together) == ((), (1, 2))
    (row,) = [row for row in found.rows if row.status == "layout"]
    assert row.target is None and row.baseline is not None and row.note == "collectives"


def test_the_wrong_rank_is_named(tmp_path: Path) -> None:
    found = compared(program(tmp_path / "two", 2, wrong=1), program(tmp_path / "one", 1))
    cause = found.findings[0]
    assert cause.row.place.call == "Aten.log.0.forward" and cause.row.slot == "output.0"
    assert "rank 1 computed it wrong" in cause.text and "rank 0 right" in cause.text


def test_without_together_it_is_rank_by_rank(tmp_path: Path) -> None:
    path = program(tmp_path / "two", 2)
    found = compare_task(Task(path, path, None, (0, 0), (1, 1), Settings()))
    assert found.together is None and found.ranks == (1, 1)


def test_missing_ranks_are_told_and_nothing_is_whole(tmp_path: Path) -> None:
    found = compared(program(tmp_path / "two", 2, lost=(1,)), program(tmp_path / "one", 1))
    assert found.incomplete and found.count("different") == 0 and found.findings == ()
    (note,) = [note for note in found.notes if "missing" in note]
    assert note.startswith("rank 1 of the target's 2 is missing in step 0")
    with pytest.raises(MissingDataError):
        assemble(open_dump(program(tmp_path / "none", 2)), 3, "target")


def stages(folder: Path, names: tuple[str, ...]) -> str:
    """Record ranks of which each has the gradient of one parameter."""
    for rank, name in enumerate(names):
        made = Rank(folder, rank, len(names))
        result = made.op("aten::log", [made.b.value(WHOLE + rank)], (WHOLE + rank).log())
        made.b.emit(r.Gradient(r.GRADIENT, name, result, 0))
        made.b.finish()
    return str(folder)


def test_stages_of_a_pipeline_are_not_compared_with_the_whole_program(tmp_path: Path) -> None:
    single = stages(tmp_path / "one", ("0.weight",))
    staged, replicated = (
        stages(tmp_path / name, ("0.weight", other)) for name, other in (("two", "1.weight"), ("same", "0.weight"))
    )
    for found in (compared(staged, single), compared(single, staged)):
        assert found.incomplete and found.findings == () and found.count("different") == 0
        assert [note for note in found.notes if "stages of a pipeline" in note]
    found = compared(replicated, single)
    assert not found.incomplete and not [note for note in found.notes if "stages" in note]


def test_sides_are_told_apart_in_notes(tmp_path: Path) -> None:
    whole = assemble(open_dump(program(tmp_path / "whole", 2)), 0, "target")
    assert layout_notes(whole) == [] and whole.lone == {}
    assert dict(count_aside(whole)) == {"collective": 1}


def test_calls_that_only_one_rank_made_are_counted(tmp_path: Path) -> None:
    for number in range(2):
        made = Rank(tmp_path / "dump", number, 2)
        log = made.op("aten::log", [made.b.value(WHOLE)], WHOLE.log())
        if number:
            made.op("aten::neg", [log], -WHOLE.log())
            made.op("c10d::barrier", [log], WHOLE)
        made.b.finish()
    side = assemble(open_dump(tmp_path / "dump"), 0, "target")
    (call,) = side.lone[1]
    assert (call.rank.rank, len(side.lone)) == (1, 1), "a collective is none of the program's"
    text = f"1 calls of rank 0 or rank 1 of the target have none in the other, the first is {call.name} of rank 1"
    assert layout_notes(side) == [text]


def test_a_call_that_is_named_and_that_other_ranks_did_not_make_says_so(tmp_path: Path) -> None:
    def program_of(path: Path, ranks: int, halves: int | None) -> str:
        for number in range(ranks):
            made = Rank(path, number, ranks)
            seen, log = made.op("aten::log", [made.b.value(WHOLE)], WHOLE.log()), WHOLE.log()
            if number == halves:
                seen, log = made.op("aten::sqrt", [seen], log.abs().sqrt()), log.abs().sqrt()
            made.op("aten::square", [seen], log.square())
            made.b.finish()
        return str(path)

    single = program_of(tmp_path / "single", 1, None)
    first, *_ = compared(program_of(tmp_path / "lead", 2, 0), single).findings
    assert first.text.endswith("; rank 0 made this call, rank 1 did not") and "sqrt" in first.row.place.call
    assert not any("did not" in one.text for one in compared(program_of(tmp_path / "two", 2, None), single).findings)


# -- which belong together -----------------------------------------------------------------------------------------


def test_calls_and_values_at_the_same_places(tmp_path: Path) -> None:
    """The other rank made one call more, so its ids are others."""
    ranks = []
    for number in range(2):
        made = Rank(tmp_path / "dump", number, 2)
        data = made.b.value(WHOLE)
        if number:
            made.op("aten::neg", [data], -WHOLE)
        log = made.op("aten::log", [data], WHOLE.log())
        made.op("aten::square", [log], WHOLE.log().square())
        made.b.emit(r.Gradient(r.GRADIENT, "w", log, 0))
        made.b.finish()
        ranks.append(open_dump(tmp_path / "dump").rank(0, number))
    found = correspondence(*ranks)
    names = {ranks[0].call(one).op: ranks[1].call(other).op for one, other in found.calls.items()}
    assert names == {"aten::log": "aten::log", "aten::square": "aten::square"}
    log = ranks[0]["Aten.log.0.forward"]
    assert found.values[log.inputs[0][0].id] == ranks[1]["Aten.log.0.forward"].inputs[0][0].id
    assert found.values[log.outputs.id] == ranks[1]["Aten.log.0.forward"].outputs.id != log.outputs.id


def test_gradients_belong_together_by_name(tmp_path: Path) -> None:
    ranks = []
    for number, names in enumerate((("fc.weight", "bias"), ("module.fc.weight", "other"))):
        made = Rank(tmp_path / "dump", number, 2)
        for name in names:
            made.b.emit(r.Gradient(r.GRADIENT, name, made.b.value(WHOLE * number), 0))
        made.b.finish()
        ranks.append(open_dump(tmp_path / "dump").rank(0, number))
    assert [name for name, _, _ in gradients(*ranks)] == ["fc.weight"]
    ((_, ours, theirs),) = gradients(*ranks)
    assert (ours.rank.rank, theirs.rank.rank) == (0, 1)


def test_slots_that_both_calls_have(tmp_path: Path) -> None:
    calls = []
    for number in range(2):
        made = Rank(tmp_path / "dump", number, 2)
        data, after = made.b.value(WHOLE), made.b.value(WHOLE * 2)
        op = made.b.op("aten", "aten::add_.Tensor", "Aten", "add_", ("self", "other"))
        given = [value(data), value(after)] if number else [value(data), 1.0]
        id = made.b.call(op, args=given, outputs=value(after), written=["self", value(after)])
        made.b.finish()
        calls.append(open_dump(tmp_path / "dump").rank(0, number).call(id))
    found = slots_of(Pair(calls[0], calls[1], "order"))
    assert [slot for slot, _, _ in found] == ["input.0", "output.0", "mutated.self"]
    assert all(one.rank == calls[0].rank and other.rank == calls[1].rank for _, one, other in found)


# -- parts that do not fit -----------------------------------------------------------------------------------------


def test_parts_that_do_not_fit_are_told(tmp_path: Path) -> None:
    two = program(tmp_path / "two", 2, gathers=False)
    other = Rank(tmp_path / "one", 0, 1)
    log = other.op("aten::log", [other.b.value(WHOLE.flip(0) * 3)], (WHOLE.flip(0) * 3).log())
    other.op("aten::square", [log], (WHOLE.flip(0) * 3).log().square())
    other.b.finish()
    found = compare_together(Task(two, str(tmp_path / "one"), None, (0, 0), (0, 0), Settings()))
    (note,) = [note for note in found.notes if "do not make up their counterparts" in note]
    assert "--batch-shard" in note
    assert found.count("unknown") > 0


def test_replicas_that_drifted_are_told(tmp_path: Path) -> None:
    for number in range(2):
        made = Rank(tmp_path / "two", number, 2)
        data = WHOLE.clone()
        data[3] += 0.25 * number
        made.op("aten::log", [made.b.value(data)], data.log())
        made.b.finish()
    one = Rank(tmp_path / "one", 0, 1)
    one.op("aten::log", [one.b.value(WHOLE)], WHOLE.log())
    one.b.finish()
    found = compare_together(Task(str(tmp_path / "two"), str(tmp_path / "one"), None, (0, 0), (0, 0), Settings()))
    assert any(
        "on rank 1: relative L2" in text and "greatest difference 0.25 at [3]" in text for text in found.replicas
    )
