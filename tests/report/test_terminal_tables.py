"""Tables for the terminal: rows, order, what is left out, and text that is plain in a pipe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from aten_dump import Dump, open_dump
from aten_dump.dump.index.summary import summarize
from aten_dump.report.table import Table
from aten_dump.report.terminal_tables import (
    note_sentences,
    run_lines,
    saved_by_call,
    saved_by_module,
    statistics_table,
    steps_table,
)
from tests.dump.scenario import linear_step


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    linear_step(tmp_path / "dump").builder.finish()
    linear_step(tmp_path / "dump", step=1).builder.finish(commit=False)
    return open_dump(tmp_path / "dump")


def cells(table: Table) -> list[list[str]]:
    """The rows of a table as a pipe gets them, cell by cell."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.for_pipe()]


def test_what_ran_is_a_line_a_field(dump: Dump, tmp_path: Path) -> None:
    (tmp_path / "dump" / "run.json").write_text(
        '{"format_version": [1, 0], "packages": {"torch": "2.13", "numpy": "2"}}'
    )
    lines = list(run_lines(open_dump(tmp_path / "dump")))
    assert lines[0] == f"{tmp_path / 'dump'}: 2 steps, 1 rank"
    assert "  packages: torch=2.13 numpy=2" in lines


def test_a_step_that_was_interrupted_has_no_totals(dump: Dump) -> None:
    ranks = dump.all_ranks()
    found = [(rank, summarize(rank.directory)) for rank in ranks]
    header, complete, interrupted = cells(steps_table(found, None))
    assert header == ["step", "rank", "state", "calls", "values", "index", "shards", "shard files"]
    assert complete[:5] == ["0", "0", "unchecked", "10", str(found[0][1].commit.values)]  # type: ignore[union-attr]
    assert interrupted[:5] == ["1", "0", "interrupted", "?", "?"]
    kinds = {ranks[1]: Counter(aten=5, api=3)}
    header, complete, interrupted = cells(steps_table(found, kinds))
    assert header[3:8] == ["calls", "aten", "api", "module", "node"]
    assert complete[3:8] == ["10", "?", "?", "?", "?"] and interrupted[3:8] == ["8", "5", "3", "0", "0"]


def test_notes_say_what_and_how_often(dump: Dump) -> None:
    assert list(note_sentences(dump.rank(0, 0))) == ["1 kernel launched by hand was not seen"]
    assert len(list(note_sentences(dump.rank(1, 0)))) >= 2


@pytest.mark.parametrize(("limit", "rows", "left"), [(None, 6, 0), (6, 6, 0), (2, 2, 4), (0, 0, 6)])
def test_statistics_are_a_row_for_each_slot_up_to_the_limit(
    dump: Dump, limit: int | None, rows: int, left: int
) -> None:
    calls = [dump.rank(0, 0)[name] for name in ("Functional.linear.0.forward", "Module.net.fc.0.forward")]
    table, left_out = statistics_table(calls, ["min", "nan"], limit)
    found = cells(table)
    assert found[0] == ["call", "slot", "tensor", "min", "nan"]
    assert (len(found) - 1, left_out) == (rows, left)
    if rows > 1:
        assert found[1] == ["Functional.linear.0.forward", "input.0", "f32[2, 4]", "-", "-"], "nothing is known of it"
        assert found[2] == ["Functional.linear.0.forward", "input.1", "f32[3, 4]", "-1.5", "0"]


def test_saved_memory_is_told_by_the_most_first(dump: Dump) -> None:
    saved = dump.rank(0, 0).saved_for_backward()
    table = cells(saved_by_call(saved, None))
    assert table[0] == ["by call"] and table[1] == ["call", "module", "bytes", "nbytes"]
    assert [row[0] for row in table[2:]] == ["Aten.addmm.0.forward", "Aten.relu_.0.forward"]
    assert table[3][1] == "-"
    sizes = [int(row[-1]) for row in table[2:]]
    assert sizes == sorted(sizes, reverse=True) and len(cells(saved_by_call(saved, 1))) == 3
    modules = cells(saved_by_module(saved, 1, None))
    assert [row[0] for row in modules[2:]] == ["net", "-"]
    assert cells(saved_by_module(saved, None, 1))[2][0] == "net.fc"
