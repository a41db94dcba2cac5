"""Recurrent layers, which the package composes of kernels for one layer and direction: results and gradients of the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {},
    "three layers": {"num_layers": 3},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True},
}


def run(net: nn.Module, x: Tensor, state: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs, states and all gradients, on the CPU."""
    given = [x, *([state] if isinstance(state, Tensor) else state)]
    for tensor in given:
        tensor.requires_grad_()
    y, end = net(x, state)
    ends = [y, *([end] if isinstance(end, Tensor) else end)]
    sum((n + 1) * tensor.sin().sum() for n, tensor in enumerate(ends)).backward()
    gradients = [tensor.grad for tensor in (*given, *net.parameters())]
    return [tensor.detach().cpu() for tensor in (*ends, *gradients)]


def states(kind: type[nn.Module], options: dict[str, Any], batch: int, device: str) -> Any:
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(layers, batch, 4, generator=generator).to(device) for _ in range(2)]
    return tuple(made) if kind is nn.LSTM else made[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_and_directions(kind: type[nn.Module], shape: str) -> None:
    torch.manual_seed(0)
    options, x = SHAPES[shape], torch.randn(5, 2, 3)
    net = kind(3, 4, **options)
    batch = 5 if options.get("batch_first") else 2
    there = copy.deepcopy(net).to("npu")
    expected = run(net, x.clone(), states(kind, options, batch, "cpu"))
    found = run(there, x.to("npu"), states(kind, options, batch, "npu"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_an_lstm_without_biases() -> None:
    torch.manual_seed(0)
    net, x = nn.LSTM(3, 4, bias=False), torch.randn(5, 2, 3)
    there = copy.deepcopy(net).to("npu")
    expected = run(net, x.clone(), states(nn.LSTM, {}, 2, "cpu"))
    found = run(there, x.to("npu"), states(nn.LSTM, {}, 2, "npu"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", ["one layer", "both directions"])
def test_an_lstm_of_packed_sequences(shape: str) -> None:
    """The package packs with the padding left in, of which PyTorch's gradient of packing does not know: none is asked for."""
    torch.manual_seed(0)
    net, x = nn.LSTM(3, 4, **SHAPES[shape]), torch.randn(5, 3, 3)
    there = copy.deepcopy(net).to("npu")

    def padded(net: nn.Module) -> nn.Module:
        class Padded(nn.Module):
            def forward(self, x: Tensor, state: Any) -> Any:
                packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
                y, end = net(packed, state)
                return nn.utils.rnn.pad_packed_sequence(y)[0], end

        made = Padded()
        made.net = net
        return made

    expected = run(padded(net), x.clone(), states(nn.LSTM, SHAPES[shape], 3, "cpu"))
    found = run(padded(there), x.to("npu"), states(nn.LSTM, SHAPES[shape], 3, "npu"))
    of_x = 3  # after the outputs and the two states
    del expected[of_x], found[of_x]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
