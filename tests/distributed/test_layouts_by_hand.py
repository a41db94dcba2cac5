"""Dumps of parallel layouts that are written by hand agree with one process, and with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump.analysis.compare import compare
from tests.distributed.launching import launch_once
from tests.torch_features import needs_fsdp_on_cpu

_TERMS = ("left_out", "tensor_parallel.bias", "tensor_parallel.unreduced")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("by_hand", tmp_path_factory, "tests.distributed.layouts_by_hand").folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("more_by_hand", tmp_path_factory, "tests.distributed.layouts_by_hand").folder


@pytest.mark.parametrize(("layout", "other"), [("tensor_parallel", "single"), ("flat", "flat.scattered")])
def test_two_steps_of_adam_agree_in_unlike_layouts(dumps: Path, layout: str, other: str) -> None:
    assert_agree(dumps, layout, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "other"),
    [
        ("averaged", "single"),
        ("ddp", "single"),
        pytest.param("fsdp", "single", marks=needs_fsdp_on_cpu),
        ("averaged", "ddp"),
        pytest.param("fsdp", "ddp", marks=needs_fsdp_on_cpu),
    ],
)
def test_they_agree_in_more_layouts(more: Path, layout: str, other: str) -> None:
    assert_agree(more, layout, other)


def assert_agree(dumps: Path, layout: str, other: str) -> None:
    found = compare(dumps / layout, dumps / other)
    assert found.verdict == "within", found.answer()
    assert [rank.together for rank in found.ranks] == [(2, 1 if other == "single" else 2)] * 2


def test_buckets_of_other_sizes_are_one_layout(dumps: Path) -> None:
    found = compare(dumps / "ddp.buckets", dumps / "ddp")
    assert found.verdict == "within", found.answer()
    assert [rank.together for rank in found.ranks] == [None] * 4


def test_a_mistake_in_a_layout_is_found(dumps: Path) -> None:
    assert_found(dumps, "left_out", "single", "aten::lerp_.Scalar", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "other", "op", "module"),
    [
        ("tensor_parallel.bias", "single", "aten::add.Tensor", "block.attention.out"),
        ("tensor_parallel.unreduced", "single", "aten::add.Tensor", "block.attention.out"),
        ("summed", "ddp", "aten::div_.Tensor", ""),
        ("flat.summed", "flat.scattered", "aten::div_.Tensor", ""),
        ("summed", "single", "aten::div_.Tensor", ""),
    ],
)
def test_more_mistakes_in_layouts_are_found(more: Path, layout: str, other: str, op: str, module: str) -> None:
    assert_found(more, layout, other, op, module)


def assert_found(dumps: Path, layout: str, other: str, op: str, module: str) -> None:
    found = compare(dumps / layout, dumps / other)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert layout not in _TERMS or "which nothing has reduced" in found.cause.text
    place = found.cause.row.place
    assert (place.op, place.module) == (op, module), found.answer()
