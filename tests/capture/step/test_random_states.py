"""The generator state before each random op is recorded, and the stream does not move for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tests.capture.bits import calls


def body() -> None:
    torch.randn(3)
    F.dropout(torch.ones(64), 0.5)
    torch.rand(2, generator=torch.Generator().manual_seed(11))
    torch.ones(3).add(1)


def test_states_are_those_before_each_op(record: Callable[..., Any]) -> None:
    torch.manual_seed(4)
    states = {"aten::randn": torch.get_rng_state()}
    torch.randn(3)
    states["aten::bernoulli_.float"] = torch.get_rng_state()
    states["aten::rand.generator"] = torch.Generator().manual_seed(11).get_state()
    torch.manual_seed(4)
    body()
    after = torch.get_rng_state()
    torch.manual_seed(4)
    rank = record(body, data="tensor")
    assert torch.equal(torch.get_rng_state(), after)
    found = {call.op: call.random_state for call in calls(rank, kind="aten") if call.random_state}
    assert {op: (device, raw) for op, (device, raw) in found.items()} == {
        op: ("cpu", bytes(state.tolist())) for op, state in states.items()
    }


def test_equal_states_are_stored_once_and_only_with_bytes(record: Callable[..., Any]) -> None:
    def attention() -> None:
        q = torch.ones(1, 2, 4, 8)
        for _ in range(3):
            F.scaled_dot_product_attention(q, q, q)  # may draw, and does not

    rank = record(attention, data="tensor")
    assert len(rank.tables.random) == 3
    assert len({random.blob for random in rank.tables.random.records()}) == 1
    for data in ("structure", "statistic", "hash"):
        assert not record(attention, data=data).tables.random
