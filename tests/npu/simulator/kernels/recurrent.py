"""One layer of an LSTM and of a GRU, in one direction: the package composes networks of these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registering import kernel


@kernel("npu::npu_lstm")
def lstm(x: Tensor, weight: Tensor, bias: Tensor, seq_mask: Tensor, h: Tensor, c: Tensor, *options: Any) -> Any:
    return _lstm(x, weight, bias, None, (h, c), backwards=False)


@kernel("npu::npu_lstm_data")
def lstm_of_packed(x: Tensor, sizes: Tensor, weight: Tensor, bias: Tensor, seq_mask: Tensor, *rest: Any) -> Any:
    h, c, *_, backwards = rest
    return _lstm(x, weight, bias, _mask(sizes, x), (h, c), backwards)


@kernel("npu::npu_lstm_backward")
def lstm_backward(dy: Any, dh: Any, dc: Any, x: Tensor, weight: Tensor, bias: Tensor, *kept: Any) -> Any:
    h, c, y, *made = kept
    return _lstm_backward(x, weight, None, [h, c, *made], _given((dy, dh, dc), y, -1), backwards=False)


@kernel("npu::npu_lstm_data_backward")
def lstm_of_packed_backward(dy: Any, dh: Any, dc: Any, x: Tensor, sizes: Tensor, weight: Tensor, *kept: Any) -> Any:
    _, h, c, y, *made, backwards = kept
    grads = _given((dy, dh, dc), y, 0 if backwards else -1)
    return _lstm_backward(x, weight, _mask(sizes, x), [h, c, *made], grads, backwards)


def _mask(sizes: Tensor, x: Tensor) -> Tensor:
    """Of sequences, longest first, of which so many run at each step: 1 where one runs, of [time, batch, 1]."""
    runs = torch.arange(x.shape[1], device=sizes.device) < sizes.unsqueeze(1)
    return runs.unsqueeze(2).to(x.device, x.dtype)


def _given(grads: Any, y: Tensor, last: int) -> Any:
    """The gradients of all outputs, and of the states after the last step; zeros where there are none."""
    dy, dh, dc = (torch.zeros_like(y) if grad is None else grad for grad in grads)
    return dy, dh[last], dc[last]


def _order(steps: int, backwards: bool) -> list[int]:
    return list(range(steps))[:: -1 if backwards else 1]


def _lstm(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, state: Any, backwards: bool) -> Any:
    """Run over x of [time, batch, features]; where the mask is 0 the states stay and the output is 0.

    Returns:
        Outputs, hidden and cell states, the gates i, j, f, o and tanh of the cell states, each [time, batch, hidden].
    """
    h, c = (each.reshape(-1, each.shape[-1]) for each in state)
    made: dict[int, tuple[Tensor, ...]] = {}
    for t in _order(x.shape[0], backwards):
        i, f, j, o = (torch.cat((x[t], h), 1) @ weight + bias).chunk(4, 1)
        i, f, j, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(j), torch.sigmoid(o)
        cell = f * c + i * j
        tanh = torch.tanh(cell)
        y = o * tanh
        if mask is None:
            h, c = y, cell
        else:
            h, c, y = torch.where(mask[t] > 0, y, h), torch.where(mask[t] > 0, cell, c), y * mask[t]
        made[t] = (y, h, c, i, j, f, o, tanh)
    return tuple(torch.stack([made[t][n] for t in sorted(made)]) for n in range(8))


def _lstm_backward(x: Tensor, weight: Tensor, mask: Tensor | None, kept: Any, grads: Any, backwards: bool) -> Any:
    """Gradients of x, weight, bias, and of both states at the begin."""
    h0, c0, hidden, cells, i, j, f, o, tanh = kept
    dy, dh, dc = grads
    dx, dweight, dbias = torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight[0])
    order = _order(x.shape[0], backwards)
    for at, t in reversed(list(enumerate(order))):
        h, c = (hidden[order[at - 1]], cells[order[at - 1]]) if at else (h0.reshape(dh.shape), c0.reshape(dc.shape))
        runs = torch.ones_like(dh) if mask is None else mask[t]
        of_y = runs * (dh + dy[t])
        of_cell = runs * dc + of_y * o[t] * (1 - tanh[t] ** 2)
        to_i, to_f = of_cell * j[t] * i[t] * (1 - i[t]), of_cell * c * f[t] * (1 - f[t])
        to_j, to_o = of_cell * i[t] * (1 - j[t] ** 2), of_y * tanh[t] * o[t] * (1 - o[t])
        gates = torch.cat((to_i, to_f, to_j, to_o), 1)
        dweight = dweight + torch.cat((x[t], h), 1).t() @ gates
        dbias = dbias + gates.sum(0)
        dx[t], of_h = (gates @ weight.t()).split((x.shape[2], h.shape[1]), 1)
        dh, dc = of_h + (1 - runs) * dh, of_cell * f[t] + (1 - runs) * dc
    return dx, dweight, dbias, dh.reshape(h0.shape), dc.reshape(c0.shape)


@kernel("npu::npu_gru")
def gru(x: Tensor, h: Tensor, of_x: Tensor, of_h: Tensor, bias_x: Tensor, bias_h: Tensor, *options: Any) -> Any:
    """Outputs, states, the gates update, reset and new, and what of the state went into the last."""
    made = []
    h = h.reshape(-1, h.shape[-1])
    for step in x:
        (r, z, n), (r_h, z_h, n_h) = (step @ of_x + bias_x).chunk(3, 1), (h @ of_h + bias_h).chunk(3, 1)
        r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        n = torch.tanh(n + r * n_h)
        h = (1 - z) * n + z * h
        made.append((h, h, z, r, n, n_h))
    return tuple(map(torch.stack, zip(*made, strict=True)))


@kernel("npu::npu_gru_backward")
def gru_backward(dy: Any, dh: Any, x: Tensor, of_x: Tensor, of_h: Tensor, *kept: Tensor) -> Any:
    """Gradients of the weights, x, the biases, and of the state at the begin."""
    bias_x, bias_h, _, h0, y, states, update, reset, new, from_h = kept
    dh = torch.zeros_like(y[0]) if dh is None else dh[-1]
    dx, d_of_x, d_of_h = [], torch.zeros_like(of_x), torch.zeros_like(of_h)
    d_bias_x, d_bias_h = torch.zeros_like(bias_x), torch.zeros_like(bias_h)
    for t in reversed(range(x.shape[0])):
        h, z, r, n = states[t - 1] if t else h0.reshape(dh.shape), update[t], reset[t], new[t]
        dh = dh if dy is None else dh + dy[t]
        to_n, to_z = dh * (1 - z) * (1 - n**2), dh * (h - n) * z * (1 - z)
        to_r = to_n * from_h[t] * r * (1 - r)
        gates_x, gates_h = torch.cat((to_r, to_z, to_n), 1), torch.cat((to_r, to_z, to_n * r), 1)
        d_of_x, d_of_h = d_of_x + x[t].t() @ gates_x, d_of_h + h.t() @ gates_h
        d_bias_x, d_bias_h = d_bias_x + gates_x.sum(0), d_bias_h + gates_h.sum(0)
        dx.insert(0, gates_x @ of_x.t())
        dh = dh * z + gates_h @ of_h.t()
    return d_of_x, d_of_h, torch.stack(dx), d_bias_x, d_bias_h, dh.reshape(h0.shape)
