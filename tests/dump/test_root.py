from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aten_dump.dump import open_dump
from aten_dump.errors import FormatError, MissingDataError, StoreError
from aten_dump.store import records as r
from tests.checkout import ROOT
from tests.dump.building import Builder, value
from tests.dump.scenario import linear_step


def test_steps_and_ranks(tmp_path: Path) -> None:
    root = tmp_path / "a dump"
    for step, rank in [(10, 0), (2, 1), (2, 0)]:
        Builder(root, step, rank).finish()
    (root / "run.json").write_text(json.dumps({"world_size": 2}))
    (root / "step3" / "rank0").mkdir(parents=True)  # interrupted before its first record
    (root / "stepx").mkdir()
    dump = open_dump(root)
    assert (dump.steps, dump.ranks, dump.run, dump.path) == ([2, 10], [0, 1], {"world_size": 2}, root)
    assert (dump.step(2).ranks, dump.step(10).ranks) == ([0, 1], [0])
    assert dump.step(2).rank(1).header.rank == 1
    assert dump.rank(10, 0).step == 10
    assert [(rank.step, rank.rank) for rank in dump.all_ranks()] == [(2, 0), (2, 1), (10, 0)]
    assert dump.rank(2, 0).complete
    assert dump.rank(2, 0).missing == []
    assert dump.rank(2, 0).seconds == {"capture": 0.5}


def test_opening_reads_no_index(tmp_path: Path) -> None:
    root = Builder(tmp_path / "dump").finish()
    (root / "step0" / "rank0" / "index.msgpack").write_bytes(b"\xc1 not msgpack")
    dump = open_dump(root)
    assert dump.steps == [0]
    with pytest.raises(FormatError):
        dump.rank(0, 0).calls


def test_what_is_not_there(tmp_path: Path) -> None:
    dump = open_dump(Builder(tmp_path / "dump", 5).finish())
    with pytest.raises(MissingDataError, match=r"step 0 is not in .*recorded steps: 5"):
        dump.step(0)
    with pytest.raises(MissingDataError, match=r"rank 3 is not in step 5 .*recorded ranks: 0"):
        dump.step(5).rank(3)
    with pytest.raises(MissingDataError, match=r"step '5' is not in .*recorded steps: 5"):
        dump.step("5")
    with pytest.raises(StoreError, match="does not exist"):
        open_dump(tmp_path / "no dump")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        open_dump(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="is not a dump"):
        open_dump(tmp_path / "empty")


def test_a_long_list_of_steps_is_shortened_in_its_middle(tmp_path: Path) -> None:
    for step in range(60):
        (tmp_path / f"step{step}" / "rank0").mkdir(parents=True)
        (tmp_path / f"step{step}" / "rank0" / "index.msgpack").touch()
    with pytest.raises(MissingDataError, match="recorded steps: ") as error:
        open_dump(tmp_path).step(99)
    shown = str(error.value).partition("recorded steps: ")[2].partition(". Was")[0].split(", ")
    middle = shown.index("...")
    assert shown[:middle] == [str(step) for step in range(middle)]
    assert shown[middle + 1 :] == [str(step) for step in range(60 - middle, 60)]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    builder.records[0] = builder.records[0]._replace(format_version=r.FORMAT_VERSION + 1)
    with pytest.raises(FormatError, match="update aten_dump"):
        open_dump(builder.finish()).rank(0, 0).calls


def interrupted(root: Path) -> Path:
    """Make a dump that was killed inside a module: an API call around an op never ended either."""
    scenario = linear_step(root)
    b = scenario.builder
    module = b.op("module", "torch.nn.Dropout", "Module", "net.drop")
    b.open(module, id=11, module="net.drop")
    x = b.value(torch.arange(6.0))
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), id=13, parent=12, args=[value(x)], outputs=value(x))
    return b.finish(commit=False, torn=b"\xdc\x00", lose_bytes=10)


def test_an_interrupted_dump_is_readable_and_says_what_is_missing(tmp_path: Path) -> None:
    rank = open_dump(interrupted(tmp_path / "dump")).rank(0, 0)
    assert not rank.complete
    assert len(rank.calls) == 12
    cut = rank["Module.net.drop.0.forward"]
    assert not cut.finished
    assert rank["Module.net.fc.0.forward"].finished
    assert (cut.module, cut.outputs, cut.inputs) == ("net.drop", None, ((), {}))
    assert rank["Aten.exp.0.forward"].parent is None
    assert rank["Aten.exp.0.forward"] in rank.roots
    text = "\n".join(rank.missing)
    for part in [
        "no commit record",
        "11 finished calls",
        "the last 2 bytes of the index were torn",
        "1 module calls were cut short, without outputs: Module.net.drop.0.forward",
        "1 calls that others ran in",
        "the bytes of 1 of",
    ]:
        assert part in text
    assert rank.tensor("Aten.addmm.0.forward.output.0").shape == (2, 3)
    with pytest.raises(MissingDataError, match=r"lost|interrupted"):
        rank.tensor("Aten.exp.0.forward.input.0")


def test_notes(tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    assert [note.code for note in open_dump(root).rank(0, 0).notes] == ["unseen"]


def test_reading_imports_no_accelerator_package(tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    script = (
        "import sys; from aten_dump.dump import open_dump\n"
        f"rank = open_dump({str(root)!r}).rank(0, 0)\n"
        "rank.tensor('Aten.addmm.0.forward.output.0'); rank.saved_for_backward()\n"
        "capture = {m for m in sys.modules if m.startswith('aten_dump.capture')}\n"
        "allowed = {'aten_dump.capture', 'aten_dump.capture.devices'}\n"
        "assert capture <= allowed, capture\n"
        "assert not [m for m in sys.modules if 'torch_npu' in m]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
