"""Faults in the compiled code of models that nothing was written with: named with the layer, and none is passed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.analysis.layers.planted import CHANGES, Fault, Stale, faults, trained
from tests.analysis.layers.unseen import MODELS

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]
FAULTS: dict[str, Fault] = {name: fault for known in faults().values() for name, fault in known.items()}


@pytest.mark.slow  # in `make test`: test_layers.py, and tests/analysis/rerun/test_kernel_ops.py for kernels
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_layer(tmp_path: Path, name: str) -> None:
    found = FAULTS[name].verdict(tmp_path)
    if found is None:
        pytest.skip("it changes no result by more than rounding")
    assert found.is_accused
    assert found.layer == FAULTS[name].layer
    assert found.is_named, found.name


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_an_honest_compiler_is_not_accused(tmp_path: Path, model: str) -> None:
    trained(model, tmp_path / "dump")
    found = replay(str(tmp_path / "dump"))
    assert not found.suspects
    assert not found.layers
    assert not [one for one in found.skipped if one.op.startswith("inductor::")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_seen_is_no_fault(tmp_path: Path, name: str) -> None:
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):  # by default dynamo sees no hook that is added
        found = Stale(CHANGES[name]).compared(tmp_path, {})
    assert found.exit_code == 0, found.answer()
