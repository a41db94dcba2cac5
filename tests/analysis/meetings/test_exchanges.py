"""What ranks send each other is held against what the others got: a bug is found on its rank, noise is nobody's fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import compare, open_dump
from aten_dump.store.op_names import is_collective
from tests.distributed.launching import launch_once
from tests.torch_features import needs_fsdp_on_cpu


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("exchanges", tmp_path_factory, "tests.analysis.meetings.exchanges").folder


def test_noise_of_one_rank_agrees_and_every_collective_is_proven(dumps: Path) -> None:
    found = compare(dumps / "noise", dumps / "right")
    assert found.verdict == "within", found.answer()
    unproven = [name for evidence in found.ranks for name in evidence.unproven]
    assert set(unproven) <= {"Distributed.reduce_.0.forward"}, "nobody says what a rank holds that is not its root"
    alone = compare(dumps / "noise", dumps / "right", rank=0)
    assert {leaning.ranks for leaning in alone.ranks[0].leans} == {(1,)}


def test_a_bug_on_one_rank_is_found_there_and_nowhere_else(dumps: Path) -> None:
    found = compare(dumps / "wrong", dumps / "right")
    assert found.cause is not None
    assert (found.cause.row.place.rank, found.cause.row.place.op) == (1, "aten::mul.Tensor"), found.answer()
    assert not found.ranks[0].findings
    assert "step 0 rank 0" in found.answer()


def test_a_rank_alone_says_on_whom_it_rests(dumps: Path) -> None:
    found = compare(dumps / "wrong", dumps / "right", rank=0)
    assert (found.verdict, found.cause) == ("different", None)
    assert "Distributed.allreduce_.0.forward brings what rank 1 sent, which differs by 0.02" in found.answer()


@pytest.mark.parametrize("how", ["lost", "skipped"])
def test_a_collective_that_delivers_something_else_is_the_cause(dumps: Path, how: str) -> None:
    found = compare(dumps / how, dumps / "right")
    assert found.cause is not None
    assert (found.cause.row.place.rank, found.cause.row.place.op) == (1, "c10d::allreduce_"), found.answer()
    assert found.cause.text.startswith("its result is wrong for its inputs")


def test_pickles_of_objects_are_not_judged(dumps: Path) -> None:
    found = compare(dumps / "objects.two", dumps / "objects.one")
    assert found.exit_code == 0, found.answer()


def test_a_pipeline_agrees_with_itself_though_it_infers_shapes_on_garbage(dumps: Path) -> None:
    assert compare(dumps / "pipeline.two", dumps / "pipeline.one").exit_code == 0


def test_a_bug_in_the_last_stage_is_not_blamed_on_who_receives_its_gradients(dumps: Path) -> None:
    found = compare(dumps / "pipeline.wrong", dumps / "pipeline.one")
    assert found.cause is not None
    assert (found.cause.row.place.rank, found.cause.row.place.module) == (1, "1"), found.answer()


@needs_fsdp_on_cpu
def test_a_sharded_run_with_noise_on_one_rank_agrees(dumps: Path) -> None:
    found = compare(dumps / "sharded.noisy", dumps / "sharded")
    assert found.verdict == "within", found.answer()
    unproven = [name for evidence in found.ranks for name in evidence.unproven]
    assert all(name.startswith("Custom.") for name in unproven), "FSDP's own copies alone are estimated"


@needs_fsdp_on_cpu
def test_what_a_wait_runs_is_part_of_its_collective(dumps: Path) -> None:
    rank = open_dump(dumps / "sharded").step(0).rank(0)
    splits = [call for call in rank.calls if call.op == "aten::split.Tensor"]
    assert splits and all(call.parent is not None and is_collective(call.parent.op) for call in splits)
