"""Scripts that were written for apex's HookerAndDumper."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from aten_dump import CaptureError, MissingDataError, open_dump
from aten_dump.compat import HookerAndDumper


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.rest = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.norm(self.conv(x)))


def test_a_step_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, images = Net(), torch.randn(4, 1, 4, 4, requires_grad=True)
    hooked: dict[str, torch.Tensor] = {}
    model.norm.register_full_backward_hook(lambda module, given, got: hooked.update(norm=given[0].clone()))
    dumper = HookerAndDumper(file_path=f"{tmp_path}/")
    for step in range(3):
        if step == 1:
            dumper.register_hooks(model=model, epoch=0, step=1)
        model(images).square().sum().backward()
        if step == 1:
            expected = hooked["norm"]
            dumper.remove_hooks()
    assert capsys.readouterr().out == ""
    assert dumper.file_path == f"{tmp_path}/0-epoch_1-step_dump.hdf5"
    with h5py.File(dumper.file_path) as file:
        assert list(file) == [
            "000_Conv2d", "001_BatchNorm2d", "002_Sequential", "003_Sequential", "004_BatchNorm2d", "005_Conv2d"
        ]  # fmt: skip
        assert sorted(file["001_BatchNorm2d"]) == ["feat_input0", "feat_output"]
        assert sorted(file["004_BatchNorm2d"]) == ["grad_input0", "grad_output0"]
        np.testing.assert_array_equal(file["004_BatchNorm2d/grad_input0"][:], expected.numpy())
    dumper.read_h5py_data()
    assert "004_BatchNorm2d/grad_input0 float32 (4, 2, 2, 2)" in capsys.readouterr().out.splitlines()
    assert open_dump(tmp_path / "0-epoch_1-step_dump").step(0).rank(0)["Module.rest.1.0.forward"]


def test_one_dumper_for_several_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    dumper = HookerAndDumper(f"{tmp_path}/run-", is_screen_display=True)
    with pytest.raises(MissingDataError, match="remove_hooks writes it"):
        dumper.read_h5py_data()
    for step in (3, 4, 4):  # the second 4 replaces the first
        dumper.register_hooks(model, 2, step)
        with pytest.raises(CaptureError, match="call remove_hooks first"):
            dumper.register_hooks(model, 2, step)
        model(torch.full((1, 2), float(step)))
        dumper.remove_hooks()
    dumper.remove_hooks()
    assert sorted(path.name for path in tmp_path.glob("*.hdf5")) == [f"run-2-epoch_{n}-step_dump.hdf5" for n in (3, 4)]
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {tmp_path}/run-2-epoch_4-step_dump.hdf5"
    with h5py.File(dumper.file_path) as file:
        np.testing.assert_array_equal(file["000_Linear/feat_input0"][:], [[4.0, 4.0]])
