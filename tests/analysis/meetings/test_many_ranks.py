"""Among many ranks a fault is one finding, on its rank, and honest orders of summation accuse nobody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aten_dump import compare
from tests.analysis.meetings.many_ranks import FAULTS, ORDERS, Fault, is_named, record
from tests.sampling import one_in

RANKS = 18  # more than any group of which all tensors would be in memory at once


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("honest"), RANKS)


def test_another_order_of_summation_accuses_nobody(honest: Path, tmp_path: Path) -> None:
    found = compare(record(tmp_path, RANKS, order="reversed"), honest)
    assert found.verdict == "within", found.answer()
    assert not any(evidence.unproven for evidence in found.ranks), "each collective is held against what all gave"


@pytest.mark.parametrize("fault", one_in(3, [FAULTS[3], FAULTS[6], FAULTS[10]]), ids=lambda fault: fault.name)
def test_a_fault_is_named_with_its_rank(honest: Path, tmp_path: Path, fault: Fault) -> None:
    assert is_named(record(tmp_path, RANKS, fault, bad=11), honest, fault, 11) == ""


def test_ranks_are_read_as_often_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    opener = os.open

    def counting(path: Any, *rest: Any, **named: Any) -> int:
        nonlocal opened
        opened += os.path.basename(os.fspath(path)) == "index.msgpack"
        return opener(path, *rest, **named)

    counts = []
    for ranks in (3, 9):
        folder = tmp_path / str(ranks)
        sides = record(folder / "other", ranks, order="reversed"), record(folder / "honest", ranks)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", counting)
            opened = 0
            assert compare(*sides).verdict == "within"
        counts.append(opened)
    assert 0 < counts[1] <= 3 * counts[0], "linear in ranks"


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_64_ranks_add_up_in_any_order(tmp_path: Path, order: str) -> None:
    found = compare(record(tmp_path / "other", 64, order=order), record(tmp_path / "honest", 64))
    assert found.exit_code == 0, found.answer()


@pytest.mark.slow
def test_of_64_ranks_the_one_that_is_wrong_is_named_for_each_kind_of_fault(tmp_path: Path) -> None:
    honest = record(tmp_path / "honest", 64)
    for number, fault in enumerate(FAULTS[::5]):
        bad = 63 - 11 * number
        assert is_named(record(tmp_path / fault.name, 64, fault, bad), honest, fault, bad) == "", fault.name
