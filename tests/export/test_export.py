"""Every export is opened by the tool it is for, and holds what was recorded."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import Call, ConfigError, DumpConfig, DumpMode, MissingDataError, RankDump, StoreError, Value, open_dump
from aten_dump.cli.main import main
from aten_dump.export.chosen_calls import slots_of
from aten_dump.export.job import Options, export_dump
from aten_dump.export.targets import targets
from aten_dump.other_tools.msprobe.to_msprobe import name_in_msprobe
from tests.sampling import slow_but_for

from .conftest import Net, record

FORWARD = getattr(Net.forward.__code__, "co_qualname", "forward")  # "Net.forward", but in Python 3.10


@pytest.fixture(scope="session")
def rank(recorded: Path) -> RankDump:
    return open_dump(recorded).step(0).rank(0)


def stored(rank: RankDump, kinds: tuple[str, ...]) -> Iterator[tuple[Call, str, Value]]:
    for call in rank.calls:
        if call.kind in kinds:
            for slot, value in slots_of(call):
                if value.has_data and not value.undefined:
                    yield call, slot, value


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


# -- what holds of all


@pytest.mark.parametrize("target", targets())
def test_nothing_is_left_under_the_final_name_when_it_fails(recorded: Path, tmp_path: Path, target: str) -> None:
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls = done
        assert done <= total
        assert not (tmp_path / "out").exists()
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dump(recorded, target, tmp_path / "out", progress=stop)
    assert calls == 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", targets())
def test_an_export_is_not_written_over_what_is_there(recorded: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match=r"exists already.*--overwrite"):
        export_dump(recorded, target, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    export_dump(recorded, target, tmp_path / "out", Options(overwrite=True, steps=0))
    assert (tmp_path / "out").is_file() == targets()[target].is_file
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_never_replaces_the_dump_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = record(tmp_path / "runs" / "dump", steps=1, data="structure")
    monkeypatch.chdir(dump.parent)
    (tmp_path / "link").symlink_to(dump)
    for place in (dump, dump / "step0", tmp_path / "runs", tmp_path / "link", ".", "dump/../dump"):
        with pytest.raises(ConfigError, match="name a place outside the dump"):
            export_dump("dump", "npy", place, Options(overwrite=True))
    result = CliRunner().invoke(main, ["export", "dump", "--to", "graph", "--out", "dump", "--overwrite"])
    assert (result.exit_code, len(open_dump(dump).step(0).rank(0).calls) > 0) == (2, True)
    export_dump("dump", "graph", "dump/graph")  # beside its steps is room


def test_a_file_does_not_replace_a_folder_or_a_device(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine").write_text("years of it")
    with pytest.raises(ConfigError, match="is a folder, and one file is to be written"):
        export_dump(recorded, "perfetto", tmp_path / "results", Options(overwrite=True))
    assert (tmp_path / "results" / "mine").read_text() == "years of it"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a device or a pipe"):
        export_dump(recorded, "perfetto", tmp_path / "pipe", Options(overwrite=True))


def test_a_killed_export_leaves_nothing_under_the_final_name(recorded: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from aten_dump.export.job import export_dump\n"
        "def slow(done, total): print('going', flush=True); time.sleep(60)\n"
        "export_dump(sys.argv[1], 'torch', sys.argv[2], progress=slow)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, recorded, tmp_path / "out"], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"going\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not (tmp_path / "out").exists()
    export_dump(recorded, "torch", tmp_path / "out")


def test_wrong_requests_say_what_there_is(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no export target 'csv'; allowed: msprobe, apex, npy, hdf5"):
        export_dump(recorded, "csv", tmp_path / "out")
    with pytest.raises(MissingDataError, match=r"recorded steps: 0, 1; ranks: 0"):
        export_dump(recorded, "torch", tmp_path / "out", Options(steps="7"))
    with pytest.raises(ConfigError, match=r"^export's ranks is 'z'; allowed: \"all\""):
        export_dump(recorded, "torch", tmp_path / "out", Options(ranks="z"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        export_dump(recorded, "torch", tmp_path / "file" / "out")


@pytest.mark.parametrize("target", targets())
def test_what_an_interrupted_dump_still_holds_is_exported(tmp_path: Path, target: str) -> None:
    dump = record(tmp_path / "dump", steps=1, data="tensor")
    shard = dump / "step0" / "rank0" / "shard-00000.safetensors"
    os.truncate(shard, shard.stat().st_size - 8)  # of the last tensors, which lie in one blob
    rank = open_dump(dump).step(0).rank(0)
    (lost,) = rank.source.lost_blobs(rank.tables)
    done = export_dump(dump, target, tmp_path / "out")
    assert done.calls > 0
    if target in ("msprobe", "hdf5", "npy", "torch"):
        assert done.left_out["tensors whose bytes are not in their shards: the dump was cut short"] > 0
    if target == "torch":
        names = [(call, slot) for call, slot, value in stored(rank, targets()[target].kinds) if value.data.blob != lost]
        assert len(names) > 10
        for call, slot in names:
            found = torch.load(tmp_path / "out" / "step0" / "rank0" / f"{call.name}.{slot}.pt")
            assert torch.equal(bits(found), bits(rank.tensor(f"{call.name}.{slot}")))


class PackedLinear(nn.Module):
    """A product with a weight of which two numbers share a byte, as inference in four bits keeps them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        codes = torch.randint(0, 16, (4, 8), dtype=torch.uint8)
        self.packed = (codes[:, ::2] | codes[:, 1::2] << 4).contiguous().view(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.packed.view(torch.uint8)
        weight = torch.stack([packed & 15, packed >> 4], -1).flatten(1).float() - 8
        return x @ weight.t()


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "uint4"])
@pytest.mark.parametrize("target", targets())
def test_weights_of_four_bits_are_exported(tmp_path: Path, target: str, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    model = nn.Sequential(nn.Linear(6, 8), PackedLinear(getattr(torch, dtype)))
    with DumpMode(DumpConfig(tmp_path / "dump", data="tensor"), model=model):
        model(torch.randn(3, 6))
    assert export_dump(tmp_path / "dump", target, tmp_path / "out").calls > 0
    if target == "torch":
        found = torch.load(next((tmp_path / "out").rglob("Aten.view.*.input.0.pt")))
        assert torch.equal(found.view(torch.uint8), model[1].packed.view(torch.uint8))


def test_what_is_left_out_is_told(recorded: Path, tmp_path: Path) -> None:
    done = export_dump(recorded, "torch", tmp_path / "out", Options(steps=0))
    assert done.left_out == {"tensors that are undefined memory": 2}  # of the API and of the op in it


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump of a tensor of 256 MiB and four of 16 MiB, without statistics."""
    path = tmp_path_factory.mktemp("large") / "dump"
    with DumpMode(DumpConfig(path, data="tensor", level="api", io="output")):
        x = torch.ones(64 << 20).add(1)
        for _ in range(4):
            x = x[: 4 << 20].add(1)
    assert sum(file.stat().st_size for file in path.rglob("shard-*")) > 310 << 20
    return path


@pytest.mark.parametrize("target", slow_but_for(["hdf5"], ["msprobe", "hdf5", "npy"]))
def test_exports_stream(large: Path, tmp_path: Path, target: str) -> None:
    """An export takes less memory than its largest tensor: some blocks of 8 MiB, and 8 MiB of shards."""
    export = (
        "import re, sys, torch, h5py; from aten_dump.export.job import Options, export_dump; from aten_dump.other_tools.mindspore import to_npy; from aten_dump.other_tools.msprobe import to_msprobe\n"
        "high = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = high()\n"
        "export_dump(sys.argv[1], sys.argv[3], sys.argv[2], Options(filters={'kind': 'api'}))\n"
        "print(high() - before)"
    )
    command = [sys.executable, "-c", export, large, tmp_path / "out", target]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 200 << 10, "KiB of memory"


# -- each target


def test_torch(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "torch", tmp_path / "out")
    count = 0
    for call, slot, value in stored(rank, ("aten", "api", "module", "node")):
        found = torch.load(tmp_path / "out" / "step0" / "rank0" / f"{call.name}.{slot}.pt", weights_only=True)
        assert found.dtype == value.dtype and found.shape == value.shape
        assert torch.equal(bits(found), bits(value.tensor()))
        count += 1
    assert count > 300
    assert len(list((tmp_path / "out" / "step0" / "rank0").iterdir())) == count


def test_a_value_is_written_once(recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "torch", tmp_path / "out", Options(steps=0))
    files = list((tmp_path / "out" / "step0" / "rank0").iterdir())
    assert len({file.stat().st_ino for file in files}) < len(files) / 2


def test_names_too_long_for_a_file_are_mapped(tmp_path: Path) -> None:
    name = "a_long_name" * 30
    model = torch.nn.Sequential()
    model.add_module(name, torch.nn.ReLU())
    with DumpMode(DumpConfig(tmp_path / "dump", data="tensor"), model=model):
        model(torch.ones(2))
    export_dump(tmp_path / "dump", "torch", tmp_path / "out")
    folder = tmp_path / "out" / "step0" / "rank0"
    mapping = dict(csv.reader((folder / "mapping.csv").open()))
    assert sorted(mapping.values()) == [f"Module.{name}.0.forward.{slot}.0.pt" for slot in ("input", "output")]
    for short in mapping:
        assert torch.equal(torch.load(folder / short, weights_only=True), torch.ones(2))


def test_hdf5(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "hdf5", tmp_path / "one.h5", Options(steps=0))
    with h5py.File(tmp_path / "one.h5") as file:
        for call, slot, value in stored(rank, ("aten", "api", "module", "node")):
            dataset = file[call.name][slot]
            assert dataset.attrs["dtype"] == value.dtype_name
            expected = value.tensor().resolve_conj()
            expected = expected.float() if expected.dtype == torch.bfloat16 else expected
            np.testing.assert_array_equal(dataset[()], expected.numpy())
        call = rank["Functional.linear.0.forward"]
        assert file[call.name].attrs["op"] == "torch.nn.functional.linear"
        assert file[call.name].attrs["module"] == "fc1"
        datasets = [file[call.name][slot] for call, slot, _ in stored(rank, ("aten", "api", "module", "node"))]
        assert len(set(datasets)) == len({value.id for *_, value in stored(rank, ("aten", "api", "module", "node"))})
        assert len(set(datasets)) < len(datasets) / 2, "a value is written once, however many calls read it"
    export_dump(recorded, "hdf5", tmp_path / "all.h5")
    with h5py.File(tmp_path / "all.h5") as file:
        assert sorted(file) == ["step0", "step1"]
        assert len(file["step1/rank0"]) == len(rank.calls)


def test_apex(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "apex", tmp_path / "out.hdf5", Options(steps=0))
    with h5py.File(tmp_path / "out.hdf5") as file:
        forward, backward = ["000_Linear", "001_LayerNorm", "002_Linear"], ["003_Linear", "004_LayerNorm", "005_Linear"]
        assert list(file) == forward + backward, "the children of the model: neither it nor what is in `blocks`"
        assert sorted(file["000_Linear"]) == ["feat_input0", "feat_output"]
        expected = rank.tensor("Module.norm.0.backward.output.0")
        np.testing.assert_array_equal(file["004_LayerNorm/grad_input0"][()], expected.numpy())
        assert file["005_Linear/grad_input0"].shape == (0,), "the input of the model has no gradient"


def test_npy(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "npy", tmp_path / "out")
    folder = tmp_path / "out" / "rank_0" / "Net" / "0" / "0"
    arrays = {path.name: np.load(path) for path in folder.glob("*.npy")}
    name = re.compile(r"[^.]+\.[^.]+\.\d+\.\d+\.\d+\.(input|output)\.\d+\.DefaultFormat\.\w+\.npy")
    assert all(name.fullmatch(file) for file in arrays)
    assert len(arrays) == sum(1 for _ in stored(rank, ("aten", "node")))
    call = rank.calls.filter(op="aten::addmm", kind="aten")[1]
    [found] = [array for file, array in arrays.items() if f".{call.id}." in file and ".output.0." in file]
    np.testing.assert_array_equal(found, call.outputs.tensor().numpy())
    halves = [array for file, array in arrays.items() if file.endswith(".BFloat16.npy")]
    assert halves and all(array.dtype == np.float32 for array in halves)
    rows = list(csv.DictReader((folder / "statistic.csv").open()))
    assert {row["Op Type"] + "." + row["Op Name"] for row in rows} >= {".".join(file.split(".")[:2]) for file in arrays}
    for row in rows:
        if row["Task ID"] == str(call.id) and row["IO"] == "output":
            assert row["Shape"] == "(3,8)" and row["Data Type"] == "Float32"
            assert float(row["Max Value"]) == call.outputs.stats.max
            assert int(row["Negative Zero Count"]) == int((call.outputs.tensor() < 0).sum())
    order = (tmp_path / "out" / "rank_0" / "execution_order" / "ms_execution_order_graph_0.csv").read_text().split()
    assert [line.rpartition("/")[2] for line in order if "addmm" in line] == [
        other.name.replace(".", "-") for other in rank.calls.filter(op="aten::addmm", kind="aten")
    ]
    assert order[0] == "NodeExecutionOrder-FullNameWithScope" and "Default/fc1/Aten-addmm-0-forward" in order


def test_statistics_are_computed_where_only_bytes_were_recorded(tmp_path: Path) -> None:
    with_numbers = open_dump(record(tmp_path / "full", steps=1)).step(0).rank(0)
    export_dump(record(tmp_path / "bytes", steps=1, data="tensor"), "msprobe", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "step0" / "rank0" / "dump.json").read_text())
    entry = content["data"]["Functional.gelu.0.forward"]["output"][0]
    stats = with_numbers["Functional.gelu.0.forward"].outputs.stats
    assert [entry["Max"], entry["Min"]] == [stats.max, stats.min]
    assert [entry["Mean"], entry["Norm"]] == pytest.approx([stats.mean, stats.l2norm], rel=1e-6)


def test_msprobe(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "msprobe", tmp_path / "out")
    folder = tmp_path / "out" / "step0" / "rank0"
    content = json.loads((folder / "dump.json").read_text())
    assert (content["task"], content["level"], content["framework"]) == ("tensor", "mix", "pytorch")
    calls = [call for call in rank.calls if call.kind in ("api", "module")]
    names = [name_in_msprobe(call) for call in calls]
    assert list(content["data"])[: len(names)] == names
    assert "Module.blocks.0.Linear.backward.0" in names and "Functional.linear.0.backward" in names
    entry = content["data"]["Functional.linear.0.forward"]
    assert [item["data_name"] for item in entry["input_args"]] == [
        f"Functional.linear.0.forward.input.{number}.pt" for number in range(3)
    ]
    found = torch.load(folder / "dump_tensor_data" / entry["output"][0]["data_name"], weights_only=True)
    assert torch.equal(found, rank.tensor("Functional.linear.0.forward.output.0"))
    assert content["data"]["Functional.layer_norm.0.forward"]["input_args"][1] == [{"type": "int", "value": 8}]
    construct = json.loads((folder / "construct.json").read_text())
    assert construct["Functional.linear.0.forward"] == "Module.fc1.Linear.forward.0"
    assert construct["Functional.linear.1.backward"] == "Module.blocks.0.Linear.backward.0"
    assert construct["Tensor.add_.0.forward"] == "optimizer" and construct["optimizer"] is None
    stacks = json.loads((folder / "stack.json").read_text())
    [frames] = [frames for names, frames in stacks.values() if "Functional.linear.0.forward" in names]
    assert any("conftest.py, line" in frame and f"in {FORWARD}" in frame for frame in frames)
    assert not any(torch.load(file, weights_only=True).is_conj() for file in (folder / "dump_tensor_data").iterdir())
    gradient = content["data"]["Module.fc1.Linear.parameters_grad.0"]["weight"][0]
    assert gradient["shape"] == [8, 4]


@pytest.mark.parametrize("data", ["structure", "statistic", "hash"])
def test_msprobe_tasks(tmp_path: Path, data: str) -> None:
    export_dump(record(tmp_path / "dump", steps=1, data=data), "msprobe", tmp_path / "out")
    folder = tmp_path / "out" / "step0" / "rank0"
    content = json.loads((folder / "dump.json").read_text())
    assert content["task"] == ("structure" if data == "structure" else "statistics")
    assert not (folder / "dump_tensor_data").exists() and content["dump_data_dir"] is None
    assert "Functional.linear.0.forward" in json.loads((folder / "construct.json").read_text())
    entries = content["data"].get("Functional.linear.0.forward")
    if data == "structure":
        assert entries is None
    elif data == "hash":
        assert entries["output"][0]["md5"] and entries["output"][0]["Max"] is None
    else:
        assert "md5" not in entries["output"][0] and entries["output"][0]["Max"] is not None


def test_parquet(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    import duckdb
    import pandas

    export_dump(recorded, "parquet", tmp_path / "out")
    calls = pandas.read_parquet(tmp_path / "out" / "calls")
    assert list(calls[calls.step.astype(int) == 0].call) == [call.name for call in rank.calls]
    table = "read_parquet('{}/*/*/*.parquet', hive_partitioning=true)"
    calls, uses, values, statistics = (
        table.format(tmp_path / "out" / name) for name in ("calls", "uses", "values", "statistics")
    )
    query = f"""
        select c.call, u.slot, v.dtype, v.shape, s.max from {calls} c
        join {uses} u using (step, rank, call_id) join {values} v using (step, rank, value_id)
        join {statistics} s using (step, rank, value_id)
        where c.call = 'Functional.gelu.0.forward' and u.slot = 'output.0' order by step
    """
    found = duckdb.sql(query).fetchall()
    assert len(found) == 2
    assert found[0][2:4] == ("float32", [3, 8])
    assert found[0][4] == rank["Functional.gelu.0.forward"].outputs.stats.max
    backward = duckdb.sql(f"select count(*) from {calls} where forward_id is not null and step = 0").fetchall()
    assert backward == [(sum(call.forward is not None for call in rank.calls),)]


def test_graph(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    here = Path(__file__).parent
    export_dump(recorded, "graph", tmp_path / "out", Options(sources=here))
    folder = tmp_path / "out" / "step0" / "rank0"
    text = (folder / "graph.ir").read_text()
    addmm = rank["Aten.addmm.2.forward"]
    operand = next(call for call in rank.calls if call.kind == "aten" and addmm.inputs[0][1] == call.outputs)
    line = next(line for line in text.splitlines() if "(Aten.addmm.2.forward)" in line)
    assert f"%{addmm.id}(Aten.addmm.2.forward) = aten::addmm(%value" in line and f" %{operand.id}," in line
    assert "# In file " + str(here / "conftest.py") in text
    assert re.search(r"conftest\.py\(\d+\)/x = nn\.functional\.gelu\(block\(x\)\) \+ x/", text)
    explorer = json.loads((folder / "graph.json").read_text())
    nodes = {node["id"]: node for node in explorer["graphs"][0]["nodes"]}
    assert nodes[str(addmm.id)]["namespace"] == "forward/blocks/1"
    sources = {edge["sourceNodeId"] for edge in nodes[str(addmm.id)]["incomingEdges"]}
    assert str(operand.id) in sources
    assert all(edge["sourceNodeId"] in nodes for node in nodes.values() for edge in node["incomingEdges"])
    dot = (folder / "graph.dot").read_text()
    assert f"  {operand.id} -> {addmm.id} [label=" in dot


def test_graph_reads_no_file_that_the_dump_names_unless_told(recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "graph", tmp_path / "bare", Options(steps=0))
    text = (tmp_path / "bare" / "step0" / "rank0" / "graph.ir").read_text()
    assert "gelu(block(x))" not in text and re.search(rf"conftest\.py\(\d+\)/{re.escape(FORWARD)}/", text)
    export_dump(recorded, "graph", tmp_path / "elsewhere", Options(steps=0, sources=tmp_path))
    assert "gelu(block(x))" not in (tmp_path / "elsewhere" / "step0" / "rank0" / "graph.ir").read_text()


def test_perfetto(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    export_dump(recorded, "perfetto", tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    slices = {event["args"]["id"]: event for event in events if event["ph"] == "X" and event["args"]["step"] == 0}
    assert set(slices) == {call.id for call in rank.calls if call.duration_ns}
    for call in rank.calls:
        parent = call.parent
        if call.id in slices and parent is not None and parent.id in slices:
            inner, outer = slices[call.id], slices[parent.id]
            ends = outer["ts"] + outer["dur"] + 2e-3
            assert inner["ts"] >= outer["ts"] - 2e-3
            assert inner["ts"] + inner["dur"] <= ends or inner["ts"] > ends, "slices of a track are nested or apart"
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends) and len(starts) > 50
    node = next(call for call in rank.calls if call.kind == "node" and call.forward is not None)
    start = starts[f"0.0.{node.forward.id}.{node.id}"]
    owner = slices[node.forward.id]
    assert owner["ts"] <= start["ts"] <= owner["ts"] + owner["dur"]


def test_tensorboard(rank: RankDump, recorded: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export_dump(recorded, "tensorboard", tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out" / "rank0"), size_guidance={"scalars": 0})
    events.Reload()
    found = events.Scalars("l2norm/gradient.fc1.weight")
    assert [event.step for event in found] == [0, 1]
    assert found[0].value == pytest.approx(rank.gradients["fc1.weight"].stats.l2norm, rel=1e-6)
    assert "max/Module.head.0.forward.output.0" in events.Tags()["scalars"]


def test_the_command(recorded: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aten_dump", "export", recorded, "--to", "torch", "--out", tmp_path / "out"]
    done = subprocess.run(
        [*command, "--op", "gelu", "--kind", "api", "--step", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"wrote {tmp_path / 'out'}"
    names = {path.name.rpartition(".forward")[0] for path in (tmp_path / "out" / "step1" / "rank0").iterdir()}
    assert "Functional.gelu.0" in names and all("gelu" in path.name for path in (tmp_path / "out").rglob("*.pt"))
    again = CliRunner().invoke(main, [str(part) for part in command[3:]])
    assert again.exit_code == 2 and "exists already" in again.output


NAMES = ("../../up", "a/b", "a_b", "a\0b", "\x1b[31m", "</script>", "=1+1", "x" * 300, "\ud800", "..")


@pytest.mark.parametrize("target", targets())
def test_names_that_no_file_system_takes_are_exported(target: str, tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")) as dump:
        for number, name in enumerate(NAMES):
            with dump.scope(name):
                dump.save(name, torch.full((2,), float(number)))
    export_dump(tmp_path / "dump", target, tmp_path / "deep" / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"dump", "deep"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_names_that_become_one_hold_their_own_tensors(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")) as dump:
        for number, name in enumerate(("a/b", "a_b")):
            dump.save(name, torch.full((2,), float(number)))
    export_dump(tmp_path / "dump", "torch", tmp_path / "torch")
    found = [torch.load(path) for path in tmp_path.glob("torch/**/*.pt") if path.name.startswith("Saved")]
    assert len(found) == 1, "the other has a name of its own, which mapping.csv has"
    (mapping,) = tmp_path.glob("torch/**/mapping.csv")
    (line,) = csv.reader(mapping.read_text().splitlines())
    assert {x[0].item() for x in (*found, torch.load(mapping.with_name(line[0])))} == {0.0, 1.0}
    export_dump(tmp_path / "dump", "hdf5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        groups = [file[name] for name in file if name.startswith("Saved")]
        assert sorted(group["input.0"][0] for group in groups) == [0.0, 1.0]
