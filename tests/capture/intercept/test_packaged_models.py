"""Runs of models that AOTInductor compiled: one call each, and no memory is trusted that their kernels may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from tests.capture.bits import assert_same
from tests.capture.same_outcome import note, ops, recorded

_room: Any = getattr(torch._C, "_aoti", None)
pytestmark = pytest.mark.skipif(_room is None, reason="a torch without AOTInductor")


class Package:
    """Stands where torch has its class; its kernels write as those of a package do, past the dispatcher."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        out = torch.empty(2, 2)
        out.copy_(self.weight)
        out.numpy()[...] += inputs[0].numpy()
        if inputs[0].isnan().any():
            raise ValueError("the package's own")
        return [out]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(_room, "Package", Package, raising=False)
    return Package(torch.ones(2, 2))


@pytest.mark.parametrize("data", ["structure", "tensor", "full"])
def test_a_run_is_one_call_with_what_it_returned(tmp_path: Path, package: Package, data: str) -> None:
    x = torch.full((2, 2), 2.0)
    run = Package.run
    rank = recorded(tmp_path, lambda: package.run([x])[0] + 1, data=data)
    assert Package.run is run, "torch is as it was"
    call = rank["Torch.aoti.run.0.forward"]
    assert ops(call.children)[:2] == ["torch.empty", "torch.Tensor.copy_"]
    assert note(rank, "packaged_model").count == 1
    copied, added = rank["Aten.copy_.0.forward"].outputs, rank["Aten.add.0.forward"].inputs[0][0]
    assert not added.undefined and copied.id != added.id == call.outputs[0].id
    if data != "structure":
        assert_same(torch.full((2, 2), 3.0), added.tensor())
        assert not replay(rank).suspects


def test_an_error_of_a_run_is_the_programs(tmp_path: Path, package: Package) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))), pytest.raises(ValueError, match="the package's own"):
        package.run([torch.full((2, 2), torch.nan)])
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    assert rank["Torch.aoti.run.0.forward"].error == "ValueError: the package's own"


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers")
def test_a_real_package(tmp_path: Path) -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 4)).eval()
    x = torch.randn(3, 8)
    exported = torch.export.export(model, (x,))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(path)
    rank = recorded(tmp_path, lambda: run(x) + 1)
    call = rank["Torch.aoti.boxed_run.0.forward"]
    torch.testing.assert_close(call.outputs[0].tensor(), model(x).detach())
    assert call.outputs[0].id == rank["Aten.add.0.forward"].inputs[0][0].id
    assert not replay(rank).suspects
