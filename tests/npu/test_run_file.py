"""run.json says what the device is and how it computes. Run with `make test-npu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump


def computing(path: Path) -> dict[str, Any]:
    with DumpMode(DumpConfig(path=path)):
        torch.ones(2, device="npu").exp()
    found: dict[str, Any] = open_dump(path).run["computing"]
    return found


def test_versions_and_switches_of_an_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    before = computing(tmp_path / "before")
    assert (before["soc"], before["cann"], before["driver"]) == ("Ascend910B1", "8.5.0", "8.5.0")
    assert open_dump(tmp_path / "before").run["packages"]["torch_npu"] == "2.13.0"
    assert before["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
    assert before["keeps_nonfinite"] is True and before["precision_mode"] == ""
    assert (before["matmul_hf32"], before["conv_hf32"], before["allow_internal_format"]) == (False, True, "disable")
    npu: Any = torch.get_device_module("npu")
    npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.config.allow_internal_format = True, False, True
    try:
        after = computing(tmp_path / "after")
    finally:
        npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.config.allow_internal_format = False, True, False
    changed = {name: after[name] for name in before if after[name] != before[name]}
    assert changed == {"matmul_hf32": True, "conv_hf32": False, "allow_internal_format": "enable"}
