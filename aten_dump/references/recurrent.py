"""Recurrent layers as oneDNN has them, one op for a layer and a direction, in dtypes that its kernels do not take."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_LSTM: Final = 2  # the value of `mode`


def layer(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Return the outputs by time, the last hidden and cell state, and an empty workspace."""
    if x.dtype is not torch.float64:
        found: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer(x, *given)
        return found
    reverse, sizes, mode, _, _, has_biases, *_ = given[6:]
    _refuse_others(mode, sizes)
    leaves = (x, *given[:6]) if has_biases else _without_biases((x, *given[:6]))
    return *_lstm(leaves, reverse), x.new_empty(0, dtype=torch.uint8)


def layer_backward(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Return the gradients of input, weights, biases and states."""
    if x.dtype is not torch.float64:
        found: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer_backward(x, *given)
        return found
    sent, (reverse, mode, _, _, has_biases, _, _, sizes, *_) = given[9:12], given[12:]
    _refuse_others(mode, sizes)
    leaves = (x, *given[:6]) if has_biases else _without_biases((x, *given[:6]))
    with torch.enable_grad():
        leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
        made = _lstm(leaves, reverse)
    known = [(result, grad) for result, grad in zip(made, sent, strict=True) if grad is not None]
    results, grads = zip(*known, strict=True)
    return torch.autograd.grad(results, leaves, grads, materialize_grads=True)


def _without_biases(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put zeros where a layer without biases is given its weights again; their gradients are returned all the same."""
    x, w_ih, w_hh, _, _, *states = given
    nothing = w_ih.new_zeros(w_ih.shape[0])
    return x, w_ih, w_hh, nothing, nothing.clone(), *states


def _lstm(given: tuple[Tensor, ...], reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of LSTM on input, weights, biases and states; time comes first."""
    x, *weights, hidden, cell = given
    x = x.flip(0) if reverse else x
    states = hidden.unsqueeze(0), cell.unsqueeze(0)
    out, hidden, cell = torch.lstm(x, states, weights, True, 1, 0.0, False, False, False)
    return out.flip(0) if reverse else out, hidden.squeeze(0), cell.squeeze(0)


def _refuse_others(mode: int, sizes: list[int]) -> None:
    if mode != _LSTM or sizes:
        raise NotImplementedError("a recurrent layer that is no LSTM, or of packed sequences")
