"""Who reads memory after a moment: the value itself, what became of it, and nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.last_reads import LastReads
from tests.analysis.by_distance.steps import seeded


def test_reads_of_memory_and_of_what_became_of_it(record: Callable[..., Any]) -> None:
    memory = seeded(4, 3)

    def run() -> None:
        memory[:2].mul_(2)
        memory[2:].mul_(3)
        memory[:2].exp()
        (memory + 1).sin()

    rank = record(run)
    reads = LastReads(DataFlow(rank, "aten"))
    first, second = (rank[f"Aten.mul_.{n}.forward"].written_values()[0][1] for n in (0, 1))
    assert reads.is_read(first) and reads.is_read(second)
    assert not reads.is_read(second, lambda call: call.op == "aten::exp"), "other elements"
    assert reads.is_read(first, lambda call: call.op == "aten::exp")
    before = rank["Aten.mul_.0.forward"].input_values()[0][1]
    assert reads.is_read(before, lambda call: call.op == "aten::mul_.Tensor")
    assert not reads.is_read(second, lambda call: call.op == "aten::mul_.Tensor"), "that was earlier"
    assert reads.is_read(rank["Aten.add.0.forward"].output_values()[0][1])
    assert not reads.is_read(rank["Aten.sin.0.forward"].output_values()[0][1])


def test_a_view_reads_nothing_and_what_is_overwritten_is_not_read(record: Callable[..., Any]) -> None:
    made = seeded(4)

    def run() -> None:
        made.exp().view(2, 2).t()
        made.zero_()

    rank = record(run)
    reads = LastReads(DataFlow(rank, "aten"))
    assert not reads.is_read(rank["Aten.exp.0.forward"].output_values()[0][1])
    assert not reads.is_read(rank["Aten.zero_.0.forward"].written_values()[0][1])


def test_a_sparse_tensor_is_read_as_itself(record: Callable[..., Any]) -> None:
    def run() -> None:
        sparse = torch.eye(3).to_sparse()
        torch.sparse.mm(sparse, torch.ones(3, 1))
        torch.eye(2).to_sparse()

    rank = record(run)
    reads = LastReads(DataFlow(rank, "aten"))
    one, other = (v for call in rank.calls.filter(kind="aten") for _, v in call.output_values() if not v.storage)
    assert reads.is_read(one) and not reads.is_read(other)
