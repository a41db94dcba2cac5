"""Recorded tensors in float64, and contents laid into others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import compare
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.rerun.start_tensors import laid, start_tensors
from aten_dump.dump import RankDump, Value
from aten_dump.errors import ReplayError

X = torch.linspace(0.1, 3.0, 16)


def outside(rank: RankDump) -> list[Value]:
    flow = DataFlow(rank, "aten")
    return [value for value in rank.values if flow.maker(value) is None and not value.undefined]


def test_starts_of_one_memory_share_it(record: Callable[..., Any]) -> None:
    whole = X.clone()
    part = whole[4:8]
    rank = record(lambda: (whole.exp(), part.mul_(2)))
    values = {tuple(v.shape): v for v in outside(rank)}
    tensors = start_tensors(values.values())
    tensors[values[4,].id].fill_(7)
    assert tensors[values[16,].id][4:8].tolist() == [7.0] * 4


def test_contents_are_laid_into_expanded_tensors() -> None:
    target = torch.zeros(1, 3, dtype=torch.float64).expand(4, 3)
    laid(torch.arange(3.0).expand(4, 3), target)
    assert target.tolist() == [[0.0, 1.0, 2.0]] * 4
    plain = torch.zeros(2, 2)
    laid(torch.ones(2, 2), plain)
    assert plain.tolist() == [[1.0, 1.0]] * 2
    laid(torch.arange(4.0), plain)
    assert plain.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert laid(torch.eye(2).to_sparse(), plain) is plain and torch.equal(plain, torch.eye(2))
    with pytest.raises(ReplayError, match=r"a tensor \[3\] stands for one of shape \[2, 2\]"):
        laid(torch.ones(3), plain)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_tensor_gets_the_contents_in_its_layout(layout: torch.layout) -> None:
    target = torch.eye(3).to_sparse(layout=layout)
    for contents in (torch.ones(3, 3), torch.ones(3, 3).to_sparse(), torch.ones(3, 3).to_sparse_csr()):
        found = laid(contents, target)
        assert found.layout is layout and torch.equal(found.to_dense(), torch.ones(3, 3))
        assert found is not contents


@pytest.mark.parametrize(
    ("change", "guilty"),
    [
        ("", ""),
        ("wraps", r"Aten\.(sub|_to_copy)\.0"),
        ("loses digits", r"Aten\.(_to_copy|clamp)\."),
        ("exact cast", ""),
    ],
)
def test_integers_are_no_floats(record: Callable[..., RankDump], change: str, guilty: str) -> None:
    """Differences of bytes wrap around; indices that go through bfloat16 come back as others; float64 holds them."""
    torch.manual_seed(0)
    table = torch.randn(5000, 3)
    one, other = torch.randint(0, 256, (2, 40), dtype=torch.uint8)
    index = torch.randint(0, 5000, (20,))

    def dump(kind: str) -> RankDump:
        def body() -> None:
            apart = (one - other).float() if kind == "wraps" else one.float() - other.float()
            through = {"loses digits": torch.bfloat16, "exact cast": torch.float64}.get(kind)
            at = index if through is None else index.to(through).long().clamp(max=4999)
            table[at].sin().sum().add(apart.square().mean())

        return record(body, data="tensor")

    found = compare(dump(change), dump(""))
    named = "" if found.cause is None else found.cause.row.place.call
    assert found.exit_code == bool(guilty), found.answer()
    assert bool(re.match(guilty, named)) if guilty else not named
