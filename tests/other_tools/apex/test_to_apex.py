"""Groups of the model's children in the order of execution, with the names that apex gives."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from aten_dump import open_dump
from aten_dump.other_tools.apex.to_apex import is_child, write
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.export.made import X, chosen, small_step


def test_what_a_child_was_given_and_gave_forward_and_back(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump")), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file) == ["000_Linear", "001_Linear"]
        forward, backward = file["000_Linear"], file["001_Linear"]
        assert (forward.attrs["call"], backward.attrs["call"]) == ("Module.fc.0.forward", "Module.fc.0.backward")
        assert sorted(forward) == ["feat_input0", "feat_output0", "feat_output1"], "keywords are not seen by its hooks"
        assert sorted(backward) == ["grad_input0", "grad_output0"]
        np.testing.assert_array_equal(forward["feat_input0"][()], X.numpy())
        assert forward["feat_output1"].shape == (0,), "None"


@pytest.mark.parametrize(("module", "found"), [("", False), ("fc", True), ("fc.weight", False), ("blocks.0", False)])
def test_children_are_those_right_below_the_model(tmp_path: Path, module: str, found: bool) -> None:
    b = Builder(tmp_path / "dump")
    op = b.op("module", "torch.nn.Linear", "Module", module or "Net")
    b.call(op, id=1, module=module)
    b.call(op, id=2, module=module, forward=1, phase="backward")
    calls = open_dump(b.finish()).step(0).rank(0).calls
    assert [is_child(call) for call in calls] == [found, found]


def test_dicts_and_lists_of_results_are_named_by_key_and_number(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    one = value(b.value(torch.ones(1)))
    outputs = [r.TREE_DICT, "loss", one, "states", [r.TREE_LIST, one, None]]
    b.call(b.op("module", "torch.nn.Linear", "Module", "fc"), module="fc", outputs=outputs)
    write(chosen(b.finish()), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file["000_Linear"]) == ["feat_output_loss", "feat_output_states0", "feat_output_states1"]
