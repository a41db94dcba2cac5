"""Dumps that the real msprobe and the real MindSpore wrote are read, and compare with ours; see tests/golden/foreign."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import DumpConfig, DumpMode, FormatError, MissingDataError, RankDump, compare, open_dump
from aten_dump.cli.main import main
from aten_dump.export.job import export_dump
from tests.analysis.transformer import OtherDevice
from tests.report.sections_read import sections_of

GOLDEN = Path(__file__).parents[2] / "golden" / "foreign"
MSPROBE = sorted(path.name for path in (GOLDEN / "msprobe").iterdir())


def opened(name: str) -> RankDump:
    return open_dump(GOLDEN / "msprobe" / name).step(0).rank(0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the program whose dumps lie in golden/foreign/msprobe."""
    return record_ours(tmp_path_factory.mktemp("ours") / "dump")


def record_ours(path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path, data="full", hash="crc32"), model=model):
        model(torch.arange(8.0).reshape(2, 4)).pow(2).sum().backward()
        optimizer.step()
    return path


# -- msprobe


@pytest.mark.parametrize("name", [name for name in MSPROBE if not name.startswith("debug")])
def test_every_task_and_level_of_msprobe(name: str) -> None:
    rank = opened(name)
    level, task = name.split("-")
    names = [call.name for call in rank.calls]
    assert ("Functional.linear.0.forward" in names) == (level != "L0")
    assert ("Module.0.0.forward" in names) == (level != "L1" or task == "structure")
    if level == "mix":
        linear = rank["Functional.linear.0.forward"]
        assert linear.parent is not None and linear.parent.name == "Module.0.0.forward"
        assert linear.module == "0" and linear.source.file == "/home/me/train.py"
        assert [call.name for call in linear.backward] == ["Functional.linear.0.backward"]
        assert rank["Tensor.add_.0.optimizer"].phase == "optimizer"
    if task == "structure":
        return
    call = rank["Module.0.0.forward" if level == "L0" else "Functional.linear.0.forward"]
    value = call.inputs[0][0]
    assert (value.dtype, list(value.shape)) == (torch.float32, [2, 4])
    assert (value.stats.min, value.stats.max, value.stats.mean) == (0.0, 7.0, 3.5)
    assert (value.hash is not None) == (task == "md5")
    if task == "tensor":
        assert torch.equal(value.tensor(), torch.arange(8.0).reshape(2, 4))
        assert torch.equal(call.outputs.tensor(), rank.tensor(f"{call.name}.output.0"))
    else:
        with pytest.raises(MissingDataError):
            value.tensor()
    if level != "L1":
        assert list(rank["Parameters.0.0.forward"].outputs) == ["weight", "bias"]
        assert set(rank.gradients) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("name", ["debug-tensor", "debug-statistics"])
def test_what_precision_debugger_save_wrote(name: str) -> None:
    rank = opened(name)
    assert [call.name for call in rank.calls] == ["Saved.hidden.0.forward", "Saved.hidden.0.backward"]
    assert list(rank["Saved.hidden.0.forward"].outputs.shape) == [2, 3]
    assert rank["Saved.hidden.0.forward"].outputs.has_data == (name == "debug-tensor")


@pytest.mark.parametrize("name", ["L0-tensor", "L0-statistics", "L1-tensor", "L1-md5", "mix-tensor", "mix-statistics"])
def test_an_old_dump_agrees_with_a_new_one_of_the_same_program(name: str, ours: Path) -> None:
    found = compare(GOLDEN / "msprobe" / name, ours)
    assert found.verdict in ("same", "within"), found.answer()
    assert sum(row.status in ("same", "within") for row in found.rows) >= (6 if name.startswith("L0") else 12)


@pytest.mark.parametrize("name", ["L0-tensor", "L1-tensor", "mix-tensor"])
def test_an_old_dump_agrees_with_one_whose_last_bits_differ(name: str, tmp_path: Path) -> None:
    with OtherDevice({("aten::addmm", 0): lambda t: t.nextafter(torch.tensor(torch.inf))}):
        found = compare(GOLDEN / "msprobe" / name, record_ours(tmp_path / "dump"))
    assert found.verdict == "within", found.answer()


@pytest.mark.parametrize("name", ["L0-tensor", "L1-tensor", "mix-tensor"])
def test_a_changed_result_in_an_old_dump_is_found(name: str, ours: Path, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "msprobe" / name, tmp_path / "old")
    call = "Module.1.ReLU.forward.0" if name.startswith("L0") else "Torch.relu.0.forward"
    call = call if name.startswith("L0") else "Functional.relu.0.forward"
    [file] = (tmp_path / "old").rglob(f"{call}.output.0.pt")
    torch.save(torch.load(file, weights_only=True) * 1.02, file)
    found = compare(tmp_path / "old", ours)
    assert found.verdict == "different"
    assert found.cause.row.place.call.split(".")[0] == call.split(".")[0]
    assert "output.0" in found.cause.row.slot


def test_two_old_dumps_that_differ(tmp_path: Path) -> None:
    """The bytes decide: tables without checksums must never make two tensors the same."""
    shutil.copytree(GOLDEN / "msprobe" / "mix-tensor", tmp_path / "old")
    assert compare(tmp_path / "old", GOLDEN / "msprobe" / "mix-tensor").verdict == "same"
    [file] = (tmp_path / "old").rglob("Functional.linear.0.forward.output.0.pt")
    torch.save(torch.load(file, weights_only=True) + 1e-3, file)
    assert compare(tmp_path / "old", GOLDEN / "msprobe" / "mix-tensor").verdict == "different"


def test_our_own_msprobe_export_comes_back(ours: Path, tmp_path: Path) -> None:
    export_dump(ours, "msprobe", tmp_path / "out")
    back = open_dump(tmp_path / "out").step(0).rank(0)
    there = open_dump(ours).step(0).rank(0)
    assert [c.name for c in back.calls] == [c.name for c in there.calls if c.kind in ("api", "module")]
    name = "Functional.linear.0.backward"
    assert torch.equal(back.tensor(f"{name}.output.1"), there.tensor(f"{name}.output.1"))


@pytest.mark.parametrize("format", ["msprobe", "npy"])
def test_our_own_export_agrees_with_what_it_was_made_of(format: str, ours: Path, tmp_path: Path) -> None:
    export_dump(ours, format, tmp_path / "out")
    found = compare(tmp_path / "out", ours)
    assert found.verdict in ("same", "within"), found.answer()


HOSTILE = {
    "no object": ("dump.json", b"[1, 2]"),
    "no JSON": ("dump.json", b"{"),
    "no data": ("dump.json", b'{"task": "tensor"}'),
    "data of another kind": ("dump.json", b'{"task": "tensor", "data": {"Torch.a.0.forward": 3}}'),
    "an unknown dtype": (
        "dump.json",
        b'{"task": "tensor", "data": {"Torch.a.0.forward": {"output": [{"type": "torch.Tensor", "dtype": "torch.evil", "shape": [1]}]}}}',
    ),
    "a negative size": (
        "dump.json",
        b'{"task": "tensor", "data": {"Torch.a.0.forward": {"output": [{"type": "torch.Tensor", "dtype": "torch.int8", "shape": [-1]}]}}}',
    ),
    "a deep tree": ("dump.json", b'{"data": {"Torch.a.0.forward": {"output": ' + b"[" * 5000 + b"]" * 5000 + b"}}}"),
    "a number too large": (
        "dump.json",
        b'{"data": {"Torch.a.99999999999999999999999.forward": {"output": []}}}',
    ),
    "a checksum that is none": (
        "dump.json",
        b'{"data": {"Torch.a.0.forward": {"output": [{"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1], "md5": "xy"}]}}}',
    ),
    "parents in a circle": (
        "construct.json",
        b'{"Torch.a.0.forward": "Torch.b.0.forward", "Torch.b.0.forward": "Torch.a.0.forward"}',
    ),
    "stacks that are none": ("stack.json", b'{"0": 5}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_tables_of_msprobe_are_told(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "msprobe" / "L1-statistics", tmp_path / "old")
    file, content = HOSTILE[name]
    [folder] = {path.parent for path in (tmp_path / "old").rglob("dump.json")}
    (folder / file).write_bytes(content)
    if name == "parents in a circle":
        assert len(open_dump(tmp_path / "old").step(0).rank(0).calls) > 2
        return
    with pytest.raises(FormatError):
        open_dump(tmp_path / "old").step(0).rank(0).calls


def test_files_of_tensors_run_no_code_and_lead_nowhere(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch '{tmp_path}/ran'",)

    shutil.copytree(GOLDEN / "msprobe" / "L1-tensor", tmp_path / "old")
    name = "Functional.linear.0.forward.output.0"
    [file] = (tmp_path / "old").rglob(f"{name}.pt")
    torch.save(Evil(), file)
    with pytest.raises(FormatError, match="no tensor that can be read safely"):
        open_dump(tmp_path / "old").step(0).rank(0).tensor(name)
    assert not (tmp_path / "ran").exists()
    torch.save(torch.ones(5), file)
    with pytest.raises(FormatError, match=r"holds shape \[5\]; its table says \[2, 3\]"):
        open_dump(tmp_path / "old").step(0).rank(0).tensor(name)
    table = file.parents[1] / "dump.json"
    content = json.loads(table.read_text())
    content["data"][name.removesuffix(".output.0")]["output"][0]["data_name"] = f"../dump_tensor_data/{name}.pt"
    table.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="a name without folders is expected"):
        open_dump(tmp_path / "old").step(0).rank(0).calls


# -- MindSpore


def test_a_real_dump_of_mindspore() -> None:
    dump = open_dump(GOLDEN / "mindspore")
    assert (dump.steps, dump.ranks) == ([0], [0])
    rank = dump.step(0).rank(0)
    assert [call.name for call in rank.calls][:10] == [
        "MindSpore.MatMul.0.forward",
        "MindSpore.BiasAdd.0.forward",
        "MindSpore.ReLU.0.forward",
        "MindSpore.ReduceSum.0.forward",
        "MindSpore.ReluGrad.0.backward",
        "MindSpore.AssignAdd.0.optimizer",
        "MindSpore.MatMul.1.backward",
        "MindSpore.BiasAddGrad.0.backward",
        "MindSpore.SGD.0.optimizer",
        "MindSpore.SGD.1.optimizer",
    ]
    matmul = rank["MindSpore.MatMul.0.forward"]
    assert matmul.module == "network.fc"
    x, weight = (value.tensor() for value in matmul.inputs[0][:2])
    assert torch.equal(x, torch.arange(8.0).reshape(2, 4))
    torch.testing.assert_close(matmul.outputs.tensor(), x @ weight.t())
    assert compare(dump, dump).verdict == "same"


def test_statistics_and_long_names_of_mindspore(tmp_path: Path) -> None:
    """Written as MindSpore's documentation describes it: a CPU writes no statistics."""
    folder = tmp_path / "rank_3" / "LeNet" / "1" / "7"
    folder.mkdir(parents=True)
    name = "Conv2D.Default_network-WithLossCell_conv1-Conv2d_Conv2D-op107.2.2.1623124369613540"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(folder / "4b2e9d.npy", array)
    (folder / "mapping.csv").write_text(f"4b2e9d.npy,{name}.output.0.DefaultFormat.bfloat16.npy\n")
    head = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value,"
        "Count,Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,Positive Inf Count,Zero Count,L2Norm Value\n"
    )
    facts = name.replace(".", ",", 4)
    rows = [
        f'{facts},input,0,24,Float32,"(2,3)",5,-1,2.5,6,1,5,0,0,0,0,7.41\n',
        f'{facts},output,0,12,BFloat16,"(2,3)",5,0,2.5,6,0,5,0,0,0,1,7.41\n',
    ]
    (folder / "statistic.csv").write_text(head + "".join(rows))
    rank = open_dump(tmp_path).step(7).rank(3)
    [call] = rank.calls
    assert call.inputs[0][0].stats.min == -1 and call.inputs[0][0].stats.negative == 1
    assert not call.inputs[0][0].has_data
    assert call.outputs.stats.zero == 1
    assert call.outputs.tensor().dtype == torch.bfloat16
    assert torch.equal(call.outputs.tensor(), torch.from_numpy(array).bfloat16())


def test_our_own_npy_export_comes_back(ours: Path, tmp_path: Path) -> None:
    export_dump(ours, "npy", tmp_path / "out")
    back = open_dump(tmp_path / "out").step(0).rank(0)
    there = open_dump(ours).step(0).rank(0)
    assert {call.name for call in back.calls} <= {call.name for call in there.calls}
    value, other = back["Aten.addmm.0.forward"].outputs, there["Aten.addmm.0.forward"].outputs
    assert dict(value.stats) == pytest.approx({name: other.stats[name] for name in value.stats})
    for file in (tmp_path / "out").rglob("*addmm-0-forward*.output.0.*"):
        np.save(file, np.load(file) * 1.02)
    assert compare(tmp_path / "out", ours).verdict == "different"


# -- all tools


@pytest.mark.parametrize("path", ["msprobe/mix-tensor", "mindspore"])
@pytest.mark.parametrize("command", [["ls"], ["show"], ["stats"], ["nonfinite"], ["saved"]])
def test_commands_read_foreign_dumps(path: str, command: list[str]) -> None:
    result = CliRunner().invoke(main, [command[0], str(GOLDEN / path)])
    unknown = (2,) if command == ["saved"] else ()  # what autograd kept, these tools do not say
    assert result.exit_code in (unknown or (0, 1)), result.output
    assert result.output


def test_what_is_no_dump_says_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nor what msprobe .* or MindSpore"):
        open_dump(tmp_path)


@pytest.mark.parametrize("path", ["msprobe/mix-tensor", "mindspore"])
def test_a_report_of_what_other_tools_dumped(path: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(GOLDEN / path), "--output", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    outline = sections_of(tmp_path / "page.html")["outline"].json["sides"]["target"]["step_ranks"]
    assert len(outline) == len(open_dump(GOLDEN / path).all_ranks())
    assert all(one["calls"] and one["state"] == "complete" for one in outline)


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_what_other_tools_dumped_is_verified_as_far_as_it_can_be(jobs: str, tmp_path: Path) -> None:
    dump = shutil.copytree(GOLDEN / "msprobe" / "mix-tensor", tmp_path / "dump")
    words = ["verify", str(dump), "--jobs", jobs]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0 and "0 problems" in result.output, result.output
    file = next(iter(sorted(dump.rglob("*.pt")) or sorted(dump.rglob("*.npy"))))
    file.write_bytes(file.read_bytes()[:-40])
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1 and file.name in result.output and "1 problems" in result.output, result.output


def test_a_tensor_file_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    dump = shutil.copytree(GOLDEN / "msprobe" / "mix-tensor", tmp_path / "dump")
    file = min(dump.rglob("*.pt"))
    file.unlink()
    result = CliRunner().invoke(main, ["verify", str(dump)])
    assert result.exit_code == 1 and file.name in result.output and "1 problems" in result.output, result.output


@pytest.mark.parametrize("path", ["msprobe/mix-tensor", "mindspore"])
def test_times_that_nobody_recorded_are_blank(path: str) -> None:
    rank = open_dump(GOLDEN / path).all_ranks()[0]
    assert all(call.duration_ns == 0 for call in rank.calls)
    for words in ([], [rank.calls[0].name]):
        shown = CliRunner().invoke(main, ["show", str(GOLDEN / path), *words])
        assert " ns" not in shown.output and "duration" not in shown.output
    assert " ns" not in rank.calls[0]._repr_html_()
    assert rank.calls.to_pandas()["duration_ns"].isna().all()
