"""What runs in an optimizer's step is of the phase `optimizer`; the closure it is given is the program's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("as_keyword", [True, False])
@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_ops_without_gradients_in_a_closure_are_forward(
    record: Callable[..., Any], kind: str, as_keyword: bool
) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        with torch.no_grad():
            losses.append(torch.exp(loss.detach()))  # a metric
        loss.backward()
        return loss

    rank = record(lambda: optimizer.step(closure=closure) if as_keyword else optimizer.step(closure))
    phases = Counter((call.op, call.phase) for call in rank.calls if call.kind == "aten")
    assert phases["aten::exp", "forward"] == len(losses) > 0
    assert ("aten::exp", "optimizer") not in phases
    written = {call.op for call in rank.calls if call.kind == "aten" and call.phase == "optimizer"}
    assert written & {"aten::add_.Tensor", "aten::_foreach_add_.List"}, "the update itself"
    assert any(phase == "backward" for _, phase in phases)
