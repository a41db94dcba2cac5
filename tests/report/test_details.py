"""One call and one value in full, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import RankDump, open_dump
from aten_dump.report.details import call_details, value_details
from tests.dump.building import Builder, value
from tests.dump.scenario import linear_step


@pytest.fixture
def rank(tmp_path: Path) -> RankDump:
    return open_dump(linear_step(tmp_path / "dump").builder.finish()).step(0).rank(0)


def test_a_call_is_told_with_its_facts_place_arguments_and_partners(rank: RankDump) -> None:
    lines = list(call_details(rank["Aten.addmm.0.forward"]))
    assert lines[:8] == [
        "Aten.addmm.0.forward",
        "  op           aten::addmm",
        "  kind         aten",
        "  phase        forward",
        "  module       net.fc",
        "  call id      4",
        "  parent       Functional.linear.0.forward",
        "  sequence_nr  11",
    ]
    at = lines.index("source, innermost first (> marks your code)")
    assert lines[at + 1].startswith("    /venv/torch") and lines[at + 2].startswith("  > /home/me/train.py")
    at = lines.index("inputs")
    assert lines[at + 1 : at + 5] == [
        "  0 self       f32[3]", "  1 mat1       f32[2, 4]", "  2 mat2       f32[4, 3]", "  alpha        2",
    ]  # fmt: skip
    assert "    created before this step" in lines and "    made by Aten.t.0.forward.output.0" in lines
    assert "    read by Aten.relu_.0.forward.input.0" in lines
    assert lines[lines.index("backward") + 1 :] == ["  Node.AddmmBackward0.0.backward", "  Aten.mm.0.backward"]


def test_what_a_call_has_not_is_not_told(rank: RankDump) -> None:
    lines = list(call_details(rank["Functional.relu_.0.forward"]))
    told = {line.split()[0] for line in lines if line.startswith("  ")}
    assert not {"module", "parent", "sequence_nr", "error", ">"} & told
    assert "written in place: input" in lines and "children" in lines
    assert not any(line in ("forward", "backward", "recomputed by") for line in lines)


def test_statistics_and_hashes_are_told_where_they_are(rank: RankDump) -> None:
    lines = list(call_details(rank["Functional.linear.0.forward"]))
    (stats,) = [line for line in lines if line.startswith("    count")]
    assert stats.startswith("    count 12  min -1.5  max 2.5  mean 0.25")
    assert "    hash 0001020304050607" in lines


def test_a_call_that_was_cut_short_has_no_duration(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.open(b.op("module", "Linear", "Module", "fc"), id=1)
    call = open_dump(b.finish(commit=False)).step(0).rank(0).calls[0]
    assert "  duration     unknown: the call was cut short" in list(call_details(call))


@pytest.mark.parametrize(("readers", "more"), [(20, None), (21, "    ... and 1 more"), (30, "    ... and 10 more")])
def test_of_many_partners_the_first_are_told(tmp_path: Path, readers: int, more: str | None) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(torch.ones(2))
    for n in range(readers):
        b.call(b.op("aten", "aten::exp", "Aten", "exp"), n=n, args=[value(number)])
    found = open_dump(b.finish()).step(0).rank(0)
    lines = list(value_details("x", found.value_by_id(number)))
    assert sum(line.startswith("    read by") for line in lines) == 20
    assert [line for line in lines if "more" in line] == ([more] if more else [])


def test_a_value_is_told_with_its_elements_or_why_there_are_none(rank: RankDump, tmp_path: Path) -> None:
    lines = list(value_details("w", rank.value("Aten.t.0.forward.input.0")))
    assert lines[0] == "w" and lines[1].startswith("  value: f32[3, 4] stride [4, 1], cpu, 48 B, value ")
    assert lines[1].endswith("requires grad") and lines[-1].startswith("  tensor(")
    b = Builder(tmp_path / "other")
    number = b.value(torch.ones(2), store=None)
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), args=[value(number)])
    lines = list(value_details("x", open_dump(b.finish()).step(0).rank(0).value_by_id(number)))
    assert "tensor(" not in lines[-1] and "value" in lines[-1]


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4"])
def test_of_a_tensor_without_numbers_the_bytes_are_shown(tmp_path: Path, name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    b = Builder(tmp_path / "dump")
    number = b.value(torch.tensor([18, 52], dtype=torch.uint8).view(getattr(torch, name)))
    shown = list(value_details("it", open_dump(b.finish()).step(0).rank(0).value_by_id(number)))
    assert shown[-1] == "  tensor([18, 52], dtype=torch.uint8)"
