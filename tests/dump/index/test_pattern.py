"""Steps that say the same share what was worked out, and each has its own times, numbers and arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite import search
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.dump import RankDump
from aten_dump.dump.known_tables import KnownTables
from aten_dump.report.html.payload.dump_answer import nonfinite_answer, rank_outline
from aten_dump.report.html.payload.step_series import StepSeries
from aten_dump.report.over_steps import over_steps_columns, rows_over_steps
from aten_dump.store import raw_rows


def _train(path: Path, change: Callable[[int, torch.nn.Module], int] = lambda step, net: 8) -> list[RankDump]:
    """Record four steps of training; `change` may alter the model, and returns the size of a step's batch."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with DumpMode(DumpConfig(path, data="statistic"), model=net) as dump:
        for step in range(4):
            rows = change(step, net)
            optimizer.zero_grad()
            net(torch.randn(rows, 4)).sum().backward()
            optimizer.step()
            schedule.step()
            dump.step()
    return open_dump(path).all_ranks()


def _same(fresh: RankDump, alone: RankDump) -> None:
    """Assert that a recording says what it says when it is read by itself."""
    assert list(fresh.tables.calls) == list(alone.tables.calls)
    assert dict(fresh.tables.statistics) == dict(alone.tables.statistics)
    assert list(fresh.tables.values.records()) == list(alone.tables.values.records())
    assert list(fresh.tables.optimizer_groups) == list(alone.tables.optimizer_groups)
    assert (fresh.tables.header, fresh.tables.commit) == (alone.tables.header, alone.tables.commit)
    assert (fresh.state, fresh.lacks, fresh.where) == (alone.state, alone.lacks, alone.where)


def _answers(rank: RankDump) -> tuple[object, ...]:
    series = StepSeries([rank.step], [rank.rank])
    series.add(rank)
    return rank_outline(rank), find_nonfinite(rank), nonfinite_answer(rank), series.section()


def _patterns(ranks: list[RankDump]) -> int:
    """Return how many different things steps said, and assert that each has its own."""
    known = KnownTables()
    read = []
    for rank in ranks:
        fresh = known.anew(rank)
        _same(fresh, rank.anew())
        read.append(fresh)
        assert _answers(fresh) == _answers(rank.anew())
    names = list(over_steps_columns(ranks))
    statistics = names[names.index("slot") + 1 :]
    together = list(rows_over_steps(read, None, statistics))
    assert together == [row for rank in ranks for row in rows_over_steps([rank.anew()], None, statistics)]
    return len({id(fresh.tables.pattern) for fresh in read})


def test_steps_of_a_run_say_the_same(tmp_path: Path) -> None:
    assert _patterns(_train(tmp_path)[1:]) == 1, "the first step also begins the state of the optimizer"


def test_steps_that_go_on_otherwise_are_read_by_themselves(tmp_path: Path) -> None:
    assert _patterns(_train(tmp_path / "sizes", lambda step, net: 8 + step)[1:]) == 3
    assert _patterns(_train(tmp_path / "modes", lambda step, net: 8 + 0 * id(net.train(step != 2)))[1:]) == 3


def test_steps_that_are_not_whole_say_so(tmp_path: Path) -> None:
    ranks = _train(tmp_path)
    index = ranks[2].directory / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-40])
    assert _patterns(ranks[1:]) == 3


def test_nothing_is_held_of_long_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_rows, "_SHORT_BYTES", -1)
    assert _patterns(_train(tmp_path)) == 4


@pytest.mark.parametrize(("factor", "found"), [(float("nan"), "producers outside"), (1e38, "near_overflow"), (1, "")])
def test_a_step_that_is_not_finite_is_found_among_those_that_are(
    tmp_path: Path, factor: float, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(step: int, net: torch.nn.Module) -> int:
        with torch.no_grad():
            next(net.parameters()).mul_(factor if step == 2 else 1)
        return 8

    ranks = _train(tmp_path, change)
    read = list(map(KnownTables().anew, ranks))
    assert len({id(rank.tables.pattern) for rank in read[1:]}) == 1
    together = list(map(find_nonfinite, read))
    bad = [one.step for one in together if any(getattr(one, kind) for kind in found.split())]
    assert bad[:1] == ([2] if found else [])
    monkeypatch.setattr(search, "all_are_finite", lambda rank, near: False)
    assert str(together) == str([find_nonfinite(rank.anew()) for rank in ranks])
