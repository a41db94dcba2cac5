"""A layer of LSTM as oneDNN has it, in float64, against its own kernels; and programs with and without these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import compare, replay
from aten_dump.analysis.composed_ops import composed
from aten_dump.references import recurrent
from tests.analysis.by_distance.steps import record, seeded

LAYERS = ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward")

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a torch without oneDNN")


class Layers(TorchDispatchMode):
    """Keeps the calls of oneDNN's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.name() in LAYERS:
            self.calls.append((func, args, found))
        return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_in_float64_it_computes_what_its_kernels_do(bidirectional: bool, bias: bool) -> None:
    layers = nn.LSTM(3, 5, 2, bidirectional=bidirectional, bias=bias)
    with Layers() as mode:
        out, (hidden, _) = layers(seeded(7, 4, 3).requires_grad_())
        (out.square().sum() + hidden.sum()).backward()
    assert {func.name() for func, _, _ in mode.calls} == set(LAYERS)
    for func, args, found in mode.calls:
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
        run = composed(func, torch.device("cpu"))
        assert run in (recurrent.layer, recurrent.layer_backward)
        for result, mine, again in zip(found, run(*wide), run(*args), strict=True):
            if not mine.numel():
                continue  # the workspace
            assert mine.dtype == torch.float64
            torch.testing.assert_close(mine.float(), result.detach(), rtol=1e-5, atol=1e-5)
            assert torch.equal(again, result), "in its own dtype the kernel runs"


def training(path: Path, *, onednn: bool, last: int = -1) -> Path:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.LSTM(6, 8, 2, batch_first=True), nn.Linear(8, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(step: int) -> None:
        with torch.backends.mkldnn.flags(enabled=onednn):
            optimizer.zero_grad()
            model[1](model[0](seeded(4, 3, 6, seed=step))[0][:, last]).square().mean().backward()
            optimizer.step()

    return record(path, body, model)


def test_its_calls_are_replayed_and_the_ops_without_it_mean_the_same(tmp_path: Path) -> None:
    one, other = training(tmp_path / "one", onednn=True), training(tmp_path / "other", onednn=False)
    layers = [op for op in replay(one).ops if op.op in LAYERS]
    assert {op.op for op in layers} == set(LAYERS)
    assert all(op.reference == "float64" and op.ratio <= 1 for op in layers)
    for pair in ((one, other), (other, one)):
        found = compare(*pair)
        assert found.exit_code == 0, found.answer()


def test_another_state_is_found_across_both(tmp_path: Path) -> None:
    one, other = training(tmp_path / "one", onednn=True), training(tmp_path / "other", onednn=False, last=-2)
    found = compare(other, one)
    assert found.exit_code == 1, found.answer()
