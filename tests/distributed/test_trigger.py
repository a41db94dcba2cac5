"""A trigger that fires on one rank: all ranks write the same calls, and none waits for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.store.checking.verification import verify
from tests.capture.bits import raw
from tests.distributed.launching import RANKS, Launched, launch_once


def written(folder: Path) -> dict[int, list[list[tuple[int, str]]]]:
    """The ids and names of the calls on file, by step, then rank."""
    dump = open_dump(str(folder))
    assert dump.ranks == list(range(RANKS))
    found = {}
    for step in dump.steps:
        ranks = [dump.step(step).rank(rank) for rank in dump.step(step).ranks]
        assert len(ranks) == RANKS, f"step {step} is on file of ranks {dump.step(step).ranks} only"
        assert all(rank.complete and verify(rank.directory) == [] for rank in ranks)
        found[step] = [[(call.id, call.name) for call in rank.calls] for rank in ranks]
    return found


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("triggered", tmp_path_factory)


def test_all_ranks_write_the_calls_around_the_nan_of_one(launched: Launched) -> None:
    for result in launched.results:
        for name, expected in result["bare"].items():
            assert raw(result["dump"][name]) == raw(expected), name
    calls = written(launched.folder / "dump")
    assert list(calls) == [1]
    assert calls[1][0] == calls[1][1]
    assert len(calls[1][0]) >= 41
    for rank in range(RANKS):
        (note,) = [note.message for note in launched.rank("dump", rank, 1).notes if note.code == "trigger"]
        assert note.startswith("aten::div.Tensor made NaN: call ")
        assert note.endswith(", rank 1; 30 calls before it and 10 after it were written")
    quotient = [launched.rank("dump", rank, 1).value("Aten.div.0.forward.output.0") for rank in range(RANKS)]
    assert [value.stats.nan for value in quotient] == [0, 1]
    (mark,) = (launched.folder / "dump/triggers").iterdir()
    assert json.loads(mark.read_text())["rank"] == 1


def test_a_rank_that_is_ahead_and_makes_no_call_writes_what_it_holds(launched: Launched) -> None:
    calls = written(launched.folder / "behind")
    assert list(calls) == [0, 1, 2], "the window reaches into the step before and the next one"
    for step in (0, 1, 2):
        assert calls[step][0] == calls[step][1], step
    value = launched.rank("behind", 0, 1).value("Aten.div.0.forward.output.0")
    assert torch.equal(value.tensor(), torch.ones(()))
    assert [sorted(note.code for note in launched.rank("behind", r, 1).notes) for r in range(RANKS)] == [
        ["trigger"]
    ] * 2
