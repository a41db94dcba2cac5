"""Dumps of one model in unlike parallel layouts agree; a fault on one rank is found, and the rank named."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aten_dump import open_dump
from aten_dump.analysis.compare import compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.cli.commands.compare import command
from tests.distributed.launching import launch_once
from tests.torch_features import needs_fsdp_on_cpu

MODULE = "tests.distributed.layouts"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("pairs", tmp_path_factory, MODULE).folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("more_pairs", tmp_path_factory, MODULE).folder


def assert_agree(found: Comparison) -> None:
    assert found.verdict == "within", found.answer()
    assert not [row for row in found.rows if row.status == "different"]
    assert found.exit_code == 0


@pytest.mark.parametrize("layout", ["tp", pytest.param("fsdp", marks=needs_fsdp_on_cpu)])
def test_honest_layouts_agree_with_one_process(dumps: Path, layout: str) -> None:
    found = compare(dumps / layout, dumps / "single")
    assert_agree_in_all(found)
    if layout == "tp":
        assert not found.ranks[0].unproven, "collectives are ops as any other"
        calls = open_dump(dumps / "tp").step(0).rank(0).calls
        assert any(call.op == "_c10d_functional::all_reduce" for call in calls)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "sp", pytest.param("hsdp", marks=needs_fsdp_on_cpu)])
def test_more_honest_layouts_agree_with_one_process(more: Path, layout: str) -> None:
    assert_agree_in_all(compare(more / layout, more / "single"))


def assert_agree_in_all(found: Comparison) -> None:
    assert_agree(found)
    (evidence,) = found.ranks
    assert evidence.together == (2, 1)
    assert evidence.level == "tensor"
    # Every op is shown to be right by itself, and the ends are the same by what all of them make together.
    assert not [row for row in evidence.rows if row.status == "unmatched" and row.target is None]
    assert evidence.count("unknown") == 0
    assert evidence.proven == evidence.judged > 150


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp", marks=needs_fsdp_on_cpu)])
def test_what_an_optimizer_makes_of_rounding_is_the_affair_of_its_step(more: Path, layout: str) -> None:
    found = compare(more / f"{layout}.adam", more / "single.adam")
    assert found.verdict == "within", found.answer()
    assert len(found.ranks) == 2


@pytest.mark.slow
def test_a_loss_whose_classes_are_divided_agrees_with_one_process(more: Path) -> None:
    assert_agree(compare(more / "tp.classes", more / "single.classes"))


def test_the_node_of_a_redistribution_belongs_to_its_call(dumps: Path) -> None:
    nodes = [call for call in open_dump(dumps / "tp").step(0).rank(0).calls if call.op == "RedistributeBackward"]
    assert nodes
    assert {call.forward.op.rpartition(".")[2] for call in nodes if call.forward is not None} == {"Redistribute"}


@pytest.mark.slow
@needs_fsdp_on_cpu
def test_the_sides_may_change_places_and_both_be_parallel(dumps: Path) -> None:
    assert_agree(compare(dumps / "single", dumps / "tp"))
    both = compare(dumps / "tp", dumps / "fsdp")
    assert_agree(both)
    assert both.ranks[0].together == (2, 2), "as many ranks, but another layout"


@pytest.mark.slow  # in `make test`: test_layouts_by_hand.py, buckets and flat gradients
def test_one_layout_is_compared_rank_by_rank(dumps: Path) -> None:
    found = compare(dumps / "tp.norm", dumps / "tp")
    assert [evidence.ranks for evidence in found.ranks] == [(0, 0), (1, 1)]
    assert found.ranks[0].together is None


@pytest.mark.slow
def test_statistics_of_shards_cannot_be_compared_and_it_is_said(more: Path) -> None:
    found = compare(more / "tp.statistic", more / "single.statistic")
    assert (found.exit_code, found.cause) == (2, None)
    assert 'record both with data="tensor"' in found.answer().splitlines()[0]


FAULTS = {
    "fsdp.weight": ("source", "Custom.all_gather_copy_in.", "on rank 1: it reads other contents"),
    "tp.norm": ("source", "Aten.native_layer_norm.0", "on rank 1: it reads other contents of blocks.0.norm.weight"),
    "tp.gelu": ("op", "Aten.gelu.0.forward", "on rank 1: its result is wrong for its inputs"),
    "tp.addmm": ("op", "Aten.addmm.", "on rank 1: its result is wrong for its inputs"),
    "tp.wait": ("op", "Distributed.wait_tensor.3.backward", "on rank 1: its result is wrong for its inputs"),
}
MORE_FAULTS = {
    "ddp.unreduced": (
        "gradient",
        "Distributed.allreduce_.0.",
        "rank 0 goes on with what it brings, this rank with its own, a term of the sum over ranks, which nothing has reduced",
    ),
    "tp.weight": ("source", "Aten.addmm.", "on rank 1: it reads other contents of blocks.0.up"),
    "ddp.norm": ("source", "Aten.native_layer_norm.0", "on rank 1: it reads other contents"),
    "fsdp.gelu": ("op", "Aten.gelu.0.forward", "on rank 1: its result is wrong for its inputs"),
    "tp.nan": ("nonfinite", "Aten.add.0.forward", "on rank 1"),
    "tp.cat": ("op", "Aten.cat.", "on rank 1: its result is wrong for its inputs"),
}


def of_fsdp(names: Iterable[str], slow: Container[str] = ()) -> list[Any]:
    marks = {name: [needs_fsdp_on_cpu] * ("fsdp" in name) + [pytest.mark.slow] * (name in slow) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in marks]


@pytest.mark.parametrize("fault", of_fsdp(FAULTS, slow=("tp.gelu", "tp.norm")))
def test_a_fault_on_one_rank_is_the_first_cause(dumps: Path, fault: str) -> None:
    assert_first_cause(compare(dumps / fault, dumps / "single"), fault, *FAULTS[fault])


@pytest.mark.slow
@pytest.mark.parametrize("fault", of_fsdp(MORE_FAULTS))
def test_more_faults_on_one_rank_are_the_first_cause(more: Path, fault: str) -> None:
    assert_first_cause(compare(more / fault, more / "single"), fault, *MORE_FAULTS[fault])


def assert_first_cause(found: Comparison, fault: str, kind: str, call: str, said: str) -> None:
    assert found.verdict == "different"
    assert found.cause is not None
    assert (found.cause.kind, found.cause.row.place.call[: len(call)]) == (kind, call), found.answer()
    assert said in found.cause.text
    assert said in found.answer().splitlines()[0]
    if fault == "tp.addmm":
        assert found.cause.row.place.module == "blocks.0.down", "a term of a sum over ranks"
    assert found.cause.row.place.rank == 1


@pytest.mark.slow
def test_a_reduction_that_is_left_out_is_found(more: Path) -> None:
    found = compare(more / "tp.unreduced", more / "single")
    assert found.verdict == "different"
    assert found.cause is not None
    assert found.cause.row.place.op == "aten::add.Tensor", "the first op that takes a term for the sum"
    assert "is a term of the sum over ranks, which nothing has reduced" in found.cause.text


@needs_fsdp_on_cpu
def test_a_shuffled_batch_has_the_same_gradients(dumps: Path) -> None:
    found = compare(dumps / "fsdp.shuffled", dumps / "single")
    assert_agree(found)
    assert_agree(compare(dumps / "fsdp", dumps / "single", batch_shard=0))


def test_a_missing_rank_is_said_and_is_never_the_same(dumps: Path, tmp_path: Path) -> None:
    shutil.copytree(dumps / "tp", tmp_path / "dump")
    shutil.rmtree(tmp_path / "dump" / "step0" / "rank1")
    ran = CliRunner().invoke(command, [str(tmp_path / "dump"), str(dumps / "single")])
    assert ran.exit_code == 2, ran.output
    assert "rank 1 of the target's 2 is missing in step 0" in ran.output


def test_the_command_line(dumps: Path) -> None:
    ran = CliRunner().invoke(command, [str(dumps / "tp.gelu"), str(dumps / "single"), "--together"])
    assert ran.exit_code == 1
    first = ran.output.splitlines()[0]
    assert first.startswith("The dumps differ. First cause: Aten.gelu.0.forward")
    assert "step 0, 2 ranks against 1:" in ran.output
    both = CliRunner().invoke(command, [str(dumps / "tp"), str(dumps / "single"), "--rank", "0", "--batch-shard", "0"])
    assert both.exit_code != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["tp4", *(pytest.param(one, marks=needs_fsdp_on_cpu) for one in ("hsdp", "fsdp_tp", "fsdp_sp"))]
)
def test_four_ranks(tmp_path_factory: pytest.TempPathFactory, layout: str) -> None:
    folder = launch_once("meshes", tmp_path_factory, MODULE, ranks=4).folder
    found = compare(folder / layout, folder / "single")
    assert_agree(found)
    assert found.ranks[0].together == (4, 1)
    assert found.ranks[0].count("unknown") == 0
