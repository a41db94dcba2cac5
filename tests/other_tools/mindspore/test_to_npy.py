"""MindSpore's names, its table of statistics and its order of execution."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aten_dump import ConfigError, DumpConfig, DumpMode, Value, open_dump
from aten_dump.cli.main import main
from aten_dump.other_tools.mindspore.table_names import COLUMNS
from aten_dump.other_tools.mindspore.to_npy import dtype_in_mindspore, full_name, numbered, write
from tests.dump.building import START_NS, Builder, value
from tests.export.made import Y, chosen, small_step


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("float32", "Float32"),
        ("bfloat16", "BFloat16"),
        ("uint8", "UInt8"),
        ("bool", "Bool"),
        ("complex64", "Complex64"),
    ],
)
def test_dtypes_are_spelt_as_mindspore_does(ours: str, theirs: str) -> None:
    assert dtype_in_mindspore(ours) == theirs


def test_files_and_rows_are_named_alike(tmp_path: Path) -> None:
    calls = chosen(small_step(tmp_path / "dump", step=2, rank=1), ["aten", "node"])
    write(calls, tmp_path / "out")
    folder = tmp_path / "out" / "rank_1" / "Net" / "0" / "2"
    names = sorted(path.name for path in folder.glob("*.npy"))
    stem = "addmm_.Default_fc_Aten-addmm_-0-forward.3.0."
    start = (START_NS + 30_000) // 1000  # microseconds
    assert [name for name in names if name.startswith(stem)] == [
        f"{stem}{start}.{end}.DefaultFormat.Float32.npy" for end in ("input.0", "input.1", "output.0", "output.1")
    ]  # fmt: skip
    np.testing.assert_array_equal(np.load(folder / f"{stem}{start}.output.0.DefaultFormat.Float32.npy"), Y.numpy())
    rows = list(csv.DictReader((folder / "statistic.csv").open()))
    assert [(row["Op Type"], row["IO"], row["Slot"]) for row in rows] == [
        ("addmm_", "input", "0"), ("addmm_", "input", "1"), ("addmm_", "output", "0"), ("addmm_", "output", "1"),
        ("AddmmBackward0", "input", "0"),
    ]  # fmt: skip
    y = rows[2]
    assert (y["Task ID"], y["Stream ID"], y["Data Size"], y["Data Type"], y["Shape"]) == (
        "3",
        "0",
        "8",
        "Float32",
        "(1,2)",
    )
    assert (y["Max Value"], y["Min Value"], y["Avg Value"], y["L2Norm Value"]) == ("3.0", "-4.0", "-0.5", "5.0")
    assert (y["Negative Zero Count"], y["Positive Zero Count"], y["Zero Count"]) == ("1", "1", "0")
    assert y["XXH3"] == "0102030405060708" and set(COLUMNS) < set(y)
    assert calls.left_out == {"tensors that are undefined memory": 1}


def test_the_order_of_execution_and_of_steps(tmp_path: Path) -> None:
    small_step(tmp_path / "dump", 0)
    small_step(tmp_path / "dump", 4)
    write(chosen(tmp_path / "dump", ["aten", "node"]), tmp_path / "out")
    order = tmp_path / "out" / "rank_0" / "execution_order"
    assert (order / "ms_global_execution_order_graph_0.csv").read_text() == "0\n4\n"
    assert (order / "ms_execution_order_graph_0.csv").read_text().split() == [
        "NodeExecutionOrder-FullNameWithScope", "Default/fc/Aten-addmm_-0-forward",
        "Default/fc/Node-AddmmBackward0-0-backward",
    ]  # fmt: skip


def test_a_call_in_no_module_is_at_the_top(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::exp", "Aten", "exp"))
    b.call(b.op("aten", "aten::sin", "Aten", "sin"), module="a.b")
    calls = open_dump(b.finish()).step(0).rank(0).calls
    assert [full_name(call) for call in calls] == ["Default/Aten-exp-0-forward", "Default/a/b/Aten-sin-0-forward"]


def test_slots_that_are_no_plain_numbers_come_behind_and_no_number_is_used_twice(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    values = [value(b.value(torch.ones(1))) for _ in range(4)]
    b.call(
        b.op("aten", "aten::cat", "Aten", "cat"),
        args=[values[0], values[1]],
        kwargs={"k": values[2]},
        outputs=values[3],
        written=["0", values[0]],
    )
    call = open_dump(b.finish()).step(0).rank(0)["Aten.cat.0.forward"]
    assert [number for number, _ in numbered(call.input_values())] == [0, 1, 2]
    outputs = [*call.output_values(), *call.written_values()]
    assert [number for number, _ in numbered(outputs)] == [0, 1]
    assert list(numbered([])) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_large_tensor_is_written_a_block_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    x = (torch.arange(5 * 60) % 7).to(dtype).view(60, 5).t()
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::neg", "Aten", "neg"), args=[value(b.value(x))])
    b.finish()
    monkeypatch.setattr(Value.blocks, "__defaults__", (64,))
    write(chosen(tmp_path / "dump"), tmp_path / "out")
    [file] = (tmp_path / "out").rglob("*.npy")
    found = np.load(file)
    assert found.shape == (5, 60) and found.dtype == (np.bool_ if dtype == torch.bool else np.float32)
    np.testing.assert_array_equal(found, (x.float() if dtype == torch.bfloat16 else x).numpy())


HEADING = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value,Count,"
    "Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,Positive Inf Count,Zero Count,L2Norm Value,MD5"
)


def test_a_dump_of_a_config_of_mindspores_has_its_net_and_its_columns(tmp_path: Path) -> None:
    config = DumpConfig(tmp_path / "dump", net_name="ResNet50", data="full", hash="md5")
    with DumpMode(config):
        torch.ones(2).exp()
    done = CliRunner().invoke(main, ["export", str(config.path), "--to", "npy", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (table,) = (tmp_path / "out").rglob("statistic.csv")
    assert table.parent == tmp_path / "out" / "rank_0" / "ResNet50" / "0" / "0"
    assert table.read_text().splitlines()[0] == HEADING
    assert "mindspore" not in {call.op for call in open_dump(tmp_path / "out").rank(0, 0).calls}


@pytest.mark.parametrize("name", ["..", "a/b", "", ".", "a b", "x" * 300, 3])
def test_a_net_s_name_leads_nowhere(tmp_path: Path, name: object) -> None:
    with pytest.raises(ConfigError, match="net_name is"):
        DumpConfig(tmp_path / "dump", net_name=name)  # type: ignore[arg-type]
    builder = Builder(tmp_path / "dump", config={"net_name": name})
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"))
    builder.finish()
    done = CliRunner().invoke(main, ["export", str(tmp_path / "dump"), "--to", "npy", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "out" / "rank_0").iterdir() if path.name != "execution_order"] == ["Net"]
