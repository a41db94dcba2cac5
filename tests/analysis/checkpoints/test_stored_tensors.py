"""Files: every kind that is read, and damaged and hostile ones."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import aten_dump
from aten_dump import DumpConfig, DumpMode, FormatError, MissingDataError
from aten_dump.errors import AtenDumpError

STATE = {"a.weight": torch.arange(64.0).reshape(8, 8) / 7, "b.weight": torch.linspace(-1, 1, 48).reshape(6, 8)}


def sharded(folder: Path, index: bool = True) -> Path:
    folder.mkdir()
    files = {name: f"model-0000{n}-of-00002.safetensors" for n, name in enumerate(STATE, 1)}
    for name, file in files.items():
        save_file({name: STATE[name]}, folder / file)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def test_every_kind_of_file(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "one.safetensors")
    torch.save(STATE, tmp_path / "one.pt")
    torch.save(
        {"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "epoch": 3}, tmp_path / "t.pth"
    )
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "one.safetensors")  # as in a download cache
    others = [sharded(tmp_path / "indexed"), sharded(tmp_path / "plain", index=False), STATE]
    others += [tmp_path / name for name in ("one.pt", "t.pth", "link.safetensors")]
    others += [tmp_path / "indexed" / "model.safetensors.index.json"]
    for other in others:
        found = aten_dump.weights(tmp_path / "one.safetensors", other)
        assert [weight.how for weight in found] == [("equal",)] * 2, other


def test_names_that_several_files_have(tmp_path: Path) -> None:
    for rank in range(2):
        save_file({"w": STATE["a.weight"][4 * rank : 4 * rank + 4].clone()}, tmp_path / f"rank{rank}.safetensors")
    found = aten_dump.weights(tmp_path, STATE)
    assert found.of("w (rank1.safetensors)").part == "rows 4-7 of 8"


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("touch was-run",)


def test_hostile_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "whole.safetensors"
    save_file(STATE, whole)
    data = whole.read_bytes()
    torch.save({"w": Evil()}, "evil.pt")
    cases: dict[str, bytes] = {
        "cut.safetensors": data[:-9],
        "empty.safetensors": b"",
        "long.safetensors": struct.pack("<Q", 1 << 60) + data[8:],
        "json.safetensors": struct.pack("<Q", 4) + b"{]}!",
        "overlap.safetensors": data.replace(b"[0,256]", b"[0,999]"),
        "text.pt": b"hello",
        "cut.pt": (tmp_path / "evil.pt").read_bytes()[:100],
        "raw.pt": pickle.dumps(Evil()),
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    for name in (*cases, "evil.pt"):
        with pytest.raises(FormatError, match=name):
            aten_dump.weights(whole, tmp_path / name)
    assert not (tmp_path / "was-run").exists()


def test_missing_and_wrong_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(MissingDataError, match=r"names 1 tensors in files that are not there: model-00002-of-00002"):
        aten_dump.weights(folder, STATE)
    for text, why in {
        '{"weight_map": {"a.weight": "../secret.safetensors"}}': "leads out of the folder",
        '{"weight_map": {"c.weight": "model-00001-of-00002.safetensors"}}': "which lacks it",
        '{"weight_map": [1]}': "is not the index",
        '{"weight_map": {"a": 3}}': "is not the index",
        "[" * 100_000: "is not the index",
        "\\ufeff": "is not the index",
    }.items():
        index.write_text(text)
        with pytest.raises(FormatError, match=why):
            aten_dump.weights(folder, STATE)
    (tmp_path / "nothing").mkdir()
    os.mkfifo(tmp_path / "fifo.safetensors")
    for path in ("nothing", "absent.safetensors", "fifo.safetensors"):
        with pytest.raises(AtenDumpError, match=path):
            aten_dump.weights(tmp_path / path, STATE)


def test_an_expanded_tensor_claims_no_more_than_its_file(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "bomb.pt")
    with pytest.raises(FormatError, match="claims 1099511627776 elements"):
        aten_dump.weights(tmp_path / "bomb.pt", STATE)


@pytest.mark.parametrize("trains", [True, False])
def test_dumps_have_the_weights_that_a_step_reads(tmp_path: Path, trains: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(20, 16), nn.Linear(16, 24), nn.LayerNorm(24), nn.Flatten(), nn.Linear(96, 8, bias=False)
    )
    for norm in (model[2].weight, model[2].bias):
        nn.init.normal_(norm)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor"), model=model), torch.set_grad_enabled(trains):
        loss = model(torch.randint(20, (2, 4))).sum()
        if trains:
            loss.backward()
    found = aten_dump.weights(tmp_path / "dump", model)
    assert found.exit_code == 0, found.answer()
    assert {weight.target for weight in found} == {(name,) for name in model.state_dict()}
    with torch.no_grad():
        model[1].weight[3] += 1
    again = aten_dump.weights(tmp_path / "dump", model)
    assert [weight.target for weight in again if not weight.accounted] == [("1.weight",)]
