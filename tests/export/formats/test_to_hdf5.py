"""A group for each call, a dataset for each of its tensors, each value written once."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from aten_dump import Value
from aten_dump.export.formats.to_hdf5 import write
from tests.dump.building import Builder, value
from tests.export.made import Y, chosen, small_step


def test_a_call_is_a_group_that_says_what_it_is(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump")), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        group = file["Aten.addmm_.0.forward"]
        assert dict(group.attrs) == {
            "op": "aten::addmm_", "kind": "aten", "phase": "forward", "module": "fc", "id": 3,
        }  # fmt: skip
        assert sorted(group) == ["input.0", "input.1.0", "mutated.self", "output.0"]
        np.testing.assert_array_equal(group["output.0"][()], Y.numpy())
        assert group["output.0"].attrs["dtype"] == "float32"
        assert group["mutated.self"] == group["output.0"], "another name of the same dataset"
        assert file["Functional.linear.0.forward/output.0"] == group["output.0"], "a value is written once"
        assert len(file) == 7 and list(file["Node.AddmmBackward0.0.backward"]) == ["input.0"]


def test_several_steps_are_groups(tmp_path: Path) -> None:
    small_step(tmp_path / "dump", 0)
    small_step(tmp_path / "dump", 1)
    write(chosen(tmp_path / "dump", ["aten"]), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["step0", "step1"] and list(file["step1/rank0"]) == ["Aten.addmm_.0.forward"]


def test_a_large_tensor_is_written_a_block_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4 * 5 * 60, dtype=torch.bfloat16).view(4, 60, 5).transpose(1, 2)
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::neg", "Aten", "neg"), args=[value(b.value(x))])
    b.finish()
    monkeypatch.setattr(Value.blocks, "__defaults__", (64,))
    write(chosen(tmp_path / "dump"), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        dataset = file["Aten.neg.0.forward/input.0"]
        assert dataset.dtype == np.float32 and dataset.attrs["dtype"] == "bfloat16"
        np.testing.assert_array_equal(dataset[()], x.float().numpy())
