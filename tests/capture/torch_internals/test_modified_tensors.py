"""Autograd's words for a tensor that was modified in place."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.torch_internals import packed_tensors as modified_tensors
from aten_dump.capture.torch_internals.packed_tensors import name_of, words_of_torch


def said_by_torch() -> tuple[torch.Tensor, str]:
    """Return a tensor that was modified, and the error."""
    y = torch.ones(2, 3, dtype=torch.float64, requires_grad=True).tanh()
    with torch.no_grad():
        y.add_(1).mul_(2)
    with pytest.raises(RuntimeError) as caught:
        y.sum().backward()
    return y, str(caught.value)


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_they_are_those_of_this_torch(anomaly: bool) -> None:
    with torch.autograd.set_detect_anomaly(anomaly):
        y, said = said_by_torch()
        assert words_of_torch(anomaly).say(name_of(y), (0, "TanhBackward0"), (2, 0)) == said
    assert torch.is_anomaly_enabled() is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_a_tensor_has_the_name_that_torch_gives_it(dtype: torch.dtype) -> None:
    y = torch.ones(2, 3, dtype=dtype, requires_grad=True) * 1
    z = y * y
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError) as caught:
        z.sum().abs().backward()
    assert f"operation: [{name_of(y)}], which is output 0" in str(caught.value)
    assert y._version == 1


def test_a_leaf_is_no_output_of_a_node() -> None:
    said = words_of_torch(False).say("torch.FloatTensor [1]", None, (3, 1))
    assert "[torch.FloatTensor [1]] is at version 3; expected version 1 instead." in said


def test_a_torch_that_says_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    words_of_torch.cache_clear()
    monkeypatch.setattr(modified_tensors, "_said", lambda anomaly: "modified!")
    try:
        assert "is at version 2; expected version 0 instead." in words_of_torch(False).say("x", (0, "y"), (2, 0))
    finally:
        words_of_torch.cache_clear()
