"""What is known of the elements of a value: counts of NaN and Inf, and the range of the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.nonfinite.value_range import Contents, ContentsTable
from aten_dump.store import records as r
from tests.dump.building import STATISTICS, Builder

NAN, INF = math.nan, math.inf


@pytest.fixture
def contents(tmp_path: Path) -> Callable[..., Contents | None]:
    """contents(tensor, stats=...): what is known of a value."""
    count = iter(range(1000))

    def of(
        tensor: torch.Tensor,
        stats: dict[str, float | None] | None = None,
        names: list[str] | None = None,
        **options: Any,
    ) -> Contents | None:
        b = Builder(tmp_path / str(next(count)), config={"statistics": STATISTICS if names is None else names})
        number = b.value(tensor, **options)
        if stats is not None:
            b.emit(r.Statistics(r.STATISTICS, number, [stats.get(n) for n in (STATISTICS if names is None else names)]))
        rank = open_dump(b.finish()).rank(0, 0)
        table, value = ContentsTable(rank), rank.value_by_id(number)
        found = table.of(value)
        assert table.of(value) is found, "found once"
        return found

    return of


Of = Callable[..., Contents | None]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1.0, -2.0, 3.0], Contents(3, 0, 0, 0, -2.0, 3.0)),
        ([5.0], Contents(1, 0, 0, 0, 5.0, 5.0)),
        ([], Contents(0, 0, 0, 0, None, None)),
        ([NAN, 1.0, NAN], Contents(3, 2, 0, 0, 1.0, 1.0)),
        ([INF, -INF, -INF, 2.0], Contents(4, 0, 1, 2, 2.0, 2.0)),
        ([NAN, INF], Contents(2, 1, 1, 0, None, None)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_bytes_are_counted(contents: Of, items: list[float], expected: Contents, dtype: torch.dtype) -> None:
    assert contents(torch.tensor(items, dtype=dtype)) == expected


def test_many_elements_are_counted_in_parts(record: Callable[..., Any]) -> None:
    many, none = torch.ones((1 << 20) + 3), torch.full(((1 << 20) + 3,), NAN)
    many[-1], many[0], many[7] = NAN, -INF, 9.0
    rank = record(lambda: (many.neg(), none.abs()), level="aten")
    table = ContentsTable(rank)
    found = [table.of(rank[f"Aten.{name}.0.forward"].inputs[0][0]) for name in ("neg", "abs")]
    assert found == [Contents(len(many), 1, 0, 1, 1.0, 9.0), Contents(len(many), len(many), 0, 0, None, None)]


def test_complex_numbers_are_two_floats_and_float8_is_widened(contents: Of) -> None:
    assert contents(torch.tensor([complex(1, NAN), complex(-3, 2)])) == Contents(4, 1, 0, 0, -3.0, 2.0)
    assert contents(torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn)) == Contents(2, 1, 0, 0, 1.0, 1.0)
    z = torch.tensor([1 + 2j])
    assert contents(z.conj(), flags=r.CONJUGATE, raw=z) == Contents(2, 0, 0, 0, -2.0, 1.0)


def test_integers_are_finite_whatever_they_are(contents: Of) -> None:
    found = contents(torch.tensor([1, 2, 3]), store=None)
    assert found == Contents(3, 0, 0, 0, None, None) and found is not None and found.finite


def test_of_undefined_or_unrecorded_memory_nothing_is_known(contents: Of) -> None:
    assert contents(torch.ones(3), flags=r.UNDEFINED) is None
    assert contents(torch.ones(3), store=None) is None


def test_lost_bytes_are_not_known(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(torch.ones(4))
    rank = open_dump(b.finish(commit=False, lose_bytes=8)).rank(0, 0)
    assert ContentsTable(rank).of(rank.value_by_id(number)) is None


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"min": -1.0, "max": 2.0, "nan": 0, "posinf": 0, "neginf": 0}, Contents(4, 0, 0, 0, -1.0, 2.0)),
        ({"min": -INF, "max": 2.0, "nan": 1, "posinf": 2, "neginf": 3}, Contents(4, 1, 2, 3, None, 2.0)),
        ({"min": -1.0, "max": 2.0}, Contents(4, 0, 0, 0, -1.0, 2.0)),
        ({"min": -INF, "max": INF}, Contents(4, 0, 1, 1, None, None)),
        ({"min": NAN, "max": 2.0}, Contents(4, 1, 0, 0, None, 2.0)),
        ({"min": 1.0, "max": NAN}, Contents(4, 1, 0, 0, 1.0, None)),
        ({"nan": 1, "posinf": 0, "neginf": 0}, Contents(4, 1, 0, 0, None, None)),
    ],
)
def test_statistics_come_before_bytes(contents: Of, stats: Any, expected: Contents) -> None:
    assert contents(torch.full((4,), 9.0), stats) == expected


def test_statistics_that_do_not_tell_are_not_asked(contents: Of) -> None:
    known = contents(torch.full((4,), 9.0), {"mean": 1.0, "min": 0.0}, ["mean", "min"])
    assert known == Contents(4, 0, 0, 0, 9.0, 9.0), "the bytes"
    assert contents(torch.full((4,), 9.0), {"mean": 1.0}, ["mean", "min"], store=None) is None
    counts = contents(torch.full((4,), 9.0), {"nan": 2}, ["nan", "posinf", "neginf"])
    assert counts is not None and counts.nan == 2


@pytest.mark.parametrize(
    ("counts", "finite"), [((0, 0, 0), True), ((1, 0, 0), False), ((0, 1, 0), False), ((0, 0, 1), False)]
)
def test_finite(counts: tuple[int, int, int], finite: bool) -> None:
    assert Contents(4, *counts, 0.0, 1.0).finite == finite


def test_sparse_tensors_by_their_values(record: Callable[..., Any]) -> None:
    dense = torch.tensor([[0.0, NAN], [2.0, 0.0]])
    rank = record(lambda: (dense.to_sparse().mul(1), dense.to_sparse_csr().mul(1)))
    table = ContentsTable(rank)
    for name in ("sparse_coo", "sparse_csr"):
        value = next(v for v in rank.values if v.layout_name == name)
        found = table.of(value)
        assert found is not None and (found.nan, found.low, found.high) == (1, 2.0, 2.0)


def test_elements_that_are_there_once_are_looked_at_once(contents: Callable[..., Contents | None]) -> None:
    """Each of 2**44 elements, one by one, would take weeks."""
    rows = torch.tensor([1.0, NAN, -INF, 4.0])[:, None].expand(4, 1 << 42)
    assert contents(rows, names=[]) == Contents(1 << 44, 1 << 42, 0, 1 << 42, 1.0, 4.0)
