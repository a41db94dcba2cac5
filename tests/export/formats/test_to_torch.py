"""A .pt file for each tensor of each call."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump.export.formats.to_torch import write
from tests.export.made import X, chosen, small_step


def test_each_slot_is_a_file_that_torch_loads(tmp_path: Path) -> None:
    calls = chosen(small_step(tmp_path / "dump"))
    write(calls, tmp_path / "out")
    folder = tmp_path / "out" / "step0" / "rank0"
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if name.startswith("Aten")} == {
        f"Aten.addmm_.0.forward.{slot}.pt" for slot in ("input.0", "input.1.0", "output.0", "mutated.self")
    }
    assert "Module.fc.0.forward.input.mask.pt" in names and "Functional.linear.0.backward.output.0.pt" in names
    assert torch.equal(torch.load(folder / "Aten.addmm_.0.forward.input.0.pt", weights_only=True), X)
    assert calls.left_out == {"tensors that are undefined memory": 1}


def test_steps_and_ranks_have_folders_of_their_own_and_kinds_are_chosen(tmp_path: Path) -> None:
    small_step(tmp_path / "dump", 0, 1)
    small_step(tmp_path / "dump", 3, 0)
    write(chosen(tmp_path / "dump", ["node"]), tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.pt")}
    assert found == {f"{place}/Node.AddmmBackward0.0.backward.input.0.pt" for place in ("step0/rank1", "step3/rank0")}
