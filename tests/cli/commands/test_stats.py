"""stats: a row for each value of each call; a table, CSV or JSON."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import open_dump
from aten_dump.cli.commands.stats import command
from aten_dump.dump.index import source
from aten_dump.errors import AtenDumpError
from aten_dump.store.index_reader import read_index
from tests.cli.commands.tiny import record


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_the_table_has_the_recorded_statistics(dump: Path) -> None:
    lines = [line.split() for line in run(dump, "--op", "aten::t").stdout.splitlines()[1:]]
    assert lines[0][:6] == ["call", "slot", "tensor", "count", "min", "max"]
    assert lines[1] == ["Aten.t.0.forward", "input.0", "f32[3,", "4]", *lines[1][4:]] and lines[1][4:7] == [
        "12",
        "-1.5",
        "2.5",
    ]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_are_written_or_shown(dump: Path, tmp_path: Path, form: str) -> None:
    shown = run(dump, "--kind", "aten", "--format", form)
    assert shown.exit_code == 0
    written = run(dump, "--kind", "aten", "--format", form, "--output", tmp_path / "rows")
    assert written.stdout == "" and (tmp_path / "rows").read_text() == shown.stdout
    rows = json.loads(shown.stdout)["rows"] if form == "json" else list(csv.DictReader(shown.stdout.splitlines()))
    assert {row["call"] for row in rows} == {f"Aten.{name}" for name in (
        "t.0.forward", "addmm.0.forward", "relu_.0.forward", "mm.0.backward", "_foreach_add_.0.optimizer",
    )}  # fmt: skip


def test_the_limit_is_of_rows(dump: Path) -> None:
    assert len(json.loads(run(dump, "--format", "json", "--limit", "2").stdout)["rows"]) == 2
    every = json.loads(run(dump, "--format", "json", "--limit", "0").stdout)["rows"]
    assert len(every) > 20
    table = run(dump, "--limit", "2")
    assert len(table.stdout.splitlines()) == 4 and f"... {len(every) - 2} more rows" in table.stderr


def test_a_table_goes_to_no_file(dump: Path, tmp_path: Path) -> None:
    result = run(dump, "--output", tmp_path / "rows")
    assert result.exit_code == 2 and "--format csv or json" in result.stderr and not (tmp_path / "rows").exists()


def test_filters_that_match_nothing_make_a_table_without_rows(dump: Path) -> None:
    result = run(dump, "--phase", "recompute")
    assert len(result.stdout.splitlines()) == 2 and "matches these filters; it has" in result.stderr


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("steps") / "dump", steps=3, data="statistic")


def test_over_steps_a_row_says_how_a_result_moved(three_steps: Path) -> None:
    lines = [line.split() for line in run(three_steps, "--over-steps", "--op", "aten::mm").stdout.splitlines()]
    assert lines[0][-1] == "step" and "l2norm" in lines[0]
    (row,) = [line for line in lines[1:] if line[1:3] == ["Aten.mm.0.forward", "output.0"]]
    assert row[3] == "3", "it is in three steps"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_over_steps_each_step_has_its_rows(three_steps: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"steps.{form}"
    done = run(three_steps, "--over-steps", "--op", "aten::mm", "--format", form, "--output", out)
    assert done.exit_code == 0, done.output
    if form == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    found = [
        (int(row["step"]), row["slot"], float(row["l2norm"])) for row in rows if row["call"] == "Aten.mm.0.forward"
    ]
    stats = [open_dump(three_steps).rank(n, 0)["Aten.mm.0.forward"].output_values()[0][1].stats for n in range(3)]
    assert found == [(n, "output.0", one["l2norm"]) for n, one in enumerate(stats) if one is not None]


def test_over_steps_takes_all_steps(three_steps: Path) -> None:
    assert "leave out --step" in run(three_steps, "--over-steps", "--step", "1").output
    assert "needs --output" in run(three_steps, "--over-steps", "--format", "parquet").output
    assert "goes with --over-steps" in run(three_steps, "--format", "parquet").output


def test_over_steps_each_index_is_read_once(three_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(source, "read_index", lambda path: read.append(path.parent.name) or read_index(path))
    assert run(three_steps, "--over-steps").exit_code == 0
    # The first one also says which statistics there are.
    assert sorted(read) == ["step0", "step0", "step1", "step2"]


@pytest.mark.parametrize("form", ["table", "csv"])
def test_over_steps_what_is_missing_comes_first(three_steps: Path, tmp_path: Path, form: str) -> None:
    dump = shutil.copytree(three_steps, tmp_path / "dump")
    index = dump / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-10])
    lines = run(dump, "--over-steps", "--format", form, "--limit", "1").stdout.splitlines()
    assert "step 1 rank 0" in lines[0] and len(lines) > 1
    index.write_bytes(b"nothing of ours")
    done = run(dump, "--over-steps", "--format", form)
    assert "step 1 rank 0: damaged" in done.stdout.splitlines()[0] and isinstance(done.exception, AtenDumpError)
