"""Which precision a program computes in is its own affair, and told; a cast at one place alone is a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import compare

X = torch.linspace(0.1, 2.0, 12).view(3, 4)


def _plain() -> None:
    (X @ X.t()).exp()


W = torch.linspace(-1.0, 1.0, 48).view(3, 4, 4)


def _layers(*at: int, by: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.bfloat16) -> Callable[[], None]:
    """Return a program of three products, of which some are computed in another dtype."""

    def run() -> None:
        h = X
        for number, weight in enumerate(W):
            h = (by(h) @ by(weight)).float().tanh() if number in at else (h @ weight).tanh()

    return run


def _by_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        h = X @ W[0]
    for weight in W[1:]:
        h = h.float().tanh() @ weight
    h.tanh()


@pytest.mark.parametrize("at", [(0,), (2,)], ids=str)
def test_a_cast_at_one_place_is_a_finding(at: tuple[int, ...], record: Callable[..., Any]) -> None:
    changed, plain = record(_layers(*at), data="tensor"), record(_layers(), data="tensor")
    found = compare(changed, plain)
    assert found.exit_code == 1 and found.cause is not None
    assert (found.cause.kind, found.cause.row.place.call) == ("dtype", "Aten._to_copy.0.forward")
    assert "it rounds to bfloat16, in which the baseline computes nowhere" in found.answer()
    assert "counts as rounding" not in found.answer()
    turned = compare(plain, changed).cause
    assert turned is not None and turned.row.baseline is not None and turned.row.target is None
    assert turned.row.baseline.call == "Aten._to_copy.0.forward"
    assert len(compare(changed, changed).ranks[0].findings) == 0


@pytest.mark.parametrize(
    "declared",
    [_layers(0, 1), _layers(0, 1, 2), _by_autocast, _layers(1, by=lambda t: t.double())],
    ids=["most products", "all products", "autocast at one place", "a finer dtype"],
)
def test_a_precision_that_is_declared_is_none(declared: Callable[[], None], record: Callable[..., Any]) -> None:
    changed, plain = record(declared, data="tensor"), record(_layers(), data="tensor")
    assert compare(changed, plain).exit_code == compare(plain, changed).exit_code == 0
