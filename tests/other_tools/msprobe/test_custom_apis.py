"""Functions of the program's own, registered with msprobe's `register_custom_api`."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from aten_dump import ConfigError, DumpConfig, DumpMode, open_dump
from aten_dump.compat import PrecisionDebugger
from aten_dump.other_tools.msprobe.precision_debugger import recorded


@pytest.fixture
def kernels() -> types.SimpleNamespace:
    def fused_gelu(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return torch.nn.functional.gelu(x) * scale

    return types.SimpleNamespace(fused_gelu=fused_gelu, nothing=None)


def test_a_registered_function_is_a_call(tmp_path: Path, kernels: types.SimpleNamespace) -> None:
    original = kernels.fused_gelu
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="mix", task="tensor")
    PrecisionDebugger.register_custom_api(kernels, "fused_gelu", "Kernels")
    PrecisionDebugger.register_custom_api(kernels, "fused_gelu")  # twice is once
    PrecisionDebugger.start()
    x = torch.ones(3, requires_grad=True)
    kernels.fused_gelu(x, scale=2.0).sum().backward()
    PrecisionDebugger.stop()
    assert torch.equal(kernels.fused_gelu(x, scale=2.0), original(x, scale=2.0))
    PrecisionDebugger.restore_custom_api(kernels, "fused_gelu")
    PrecisionDebugger.restore_custom_api(kernels, "fused_gelu")
    assert kernels.fused_gelu is original
    PrecisionDebugger._instance._close()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    call = rank["Kernels.fused_gelu.0.forward"]
    assert call.inputs[1] == {"scale": 2.0} and torch.equal(call.outputs.tensor(), original(x, scale=2.0))
    assert [child.name for child in call.children] == ["Functional.gelu.0.forward", "Tensor.mul.0.forward"]
    assert call.stack[0].file == __file__
    assert rank["Kernels.fused_gelu.0.backward"].forward == call


def test_what_is_no_function_is_refused(tmp_path: Path, kernels: types.SimpleNamespace) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    for name in ("nothing", "no_such"):
        with pytest.raises(ConfigError, match=f"has no function '{name}'"):
            PrecisionDebugger.register_custom_api(kernels, name)


def test_modes_of_the_program_still_see_what_is_in_it(tmp_path: Path) -> None:
    ones = recorded(lambda: torch.ones(2), "My", "ones")
    with DumpMode(DumpConfig(tmp_path / "dump")), torch.device("meta"):
        assert ones().device.type == "meta"
    assert "My.ones.0.forward" in open_dump(tmp_path / "dump").rank(0, 0)
