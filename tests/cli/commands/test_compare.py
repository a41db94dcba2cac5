"""compare: the answer, the exit code, where the table goes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from pyarrow import parquet

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.comparison_rows import COLUMNS
from aten_dump.cli.commands.compare import command
from aten_dump.report.html.payload.sections import comparison_answer, judged_section
from tests.cli.commands.tiny import record, spoil


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    record(folder / "a"), record(folder / "b"), record(folder / "wrong", wrong=True)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_equal_dumps_agree(dumps: Path) -> None:
    result = run(dumps / "a", dumps / "b")
    assert result.exit_code == 0, result.output
    assert "bitwise" in result.stdout


def test_an_op_too_many_differs_and_is_the_cause(dumps: Path) -> None:
    result = run(dumps / "wrong", dumps / "a", "--format", "json")
    rows = json.loads(result.stdout)["rows"]
    unmatched = [row["target"] for row in rows if row["status"] == "unmatched"]
    assert "Aten.add.0.forward" in unmatched and result.exit_code == 1
    assert result.stderr.startswith("The dumps differ. First cause: Aten.add.0.forward"), "stdout is the table's"


def test_what_was_ignored_stands_beside_the_verdict(dumps: Path, tmp_path: Path) -> None:
    def product(path: Path, factor: float) -> Path:
        with DumpMode(DumpConfig(path, data="full", level="aten", stacks=False)):
            torch.arange(4.0).mul(factor).sum()
        return path

    pair = product(tmp_path / "wrong", 1.5), product(tmp_path / "right", 1.0)
    rules = ["--ignore", "mul", "--rule", "sum: rel_l2 < 0.6"]
    said = run(*pair, *rules)
    through = "rule 'mul: ignore' 1 value, rule 'sum: rel_l2 < 0.6' 1 value not bitwise equal"
    assert (
        said.stdout.startswith(f"The dumps agree but for what was let through: by {through}.\n") and not said.exit_code
    )
    assert comparison_answer(compare(*pair, rules=[("mul|sum", "ignore")]))["headline"].startswith(
        "The dumps agree but "
    )
    differ = run(*pair, "--rule", "sum: rel_l2 < 0.6")
    assert differ.stdout.startswith(
        "The dumps differ. Let through: by rule 'sum: rel_l2 < 0.6' 1 value not bitwise equal. "
    )
    assert "let through" not in run(dumps / "a", dumps / "b", "--ignore", "mm").stdout, "it was bitwise equal"


def test_the_table_goes_where_it_is_told(dumps: Path, tmp_path: Path) -> None:
    shown = run(dumps / "a", dumps / "b", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert rows and tuple(rows[0]) == COLUMNS
    written = run(dumps / "a", dumps / "b", "--format", "csv", "--output", tmp_path / "rows.csv")
    assert "bitwise" in written.stdout and list(csv.DictReader((tmp_path / "rows.csv").open())) == rows
    run(dumps / "a", dumps / "b", "--format", "parquet", "--output", tmp_path / "rows.parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == len(rows)


def test_rows_of_one_status_and_no_more_than_the_limit(dumps: Path) -> None:
    result = run(dumps / "a", dumps / "b", "--format", "json", "--status", "different")
    assert json.loads(result.stdout) == {"schema": 1, "rows": []}
    table = run(dumps / "a", dumps / "b", "--format", "table", "--limit", "1")
    assert "more rows; --limit 0 prints all" in table.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a"], "give TARGET and BASELINE"),
        (["a", "b", "--recompute"], "give TARGET and BASELINE"),
        (["a", "b", "--format", "parquet"], "--format parquet needs --output"),
        (["a", "b", "--status", "odd"], "unmatched"),
        (["a", "b", "--status", "same"], "--output and --status are of the table: give --format"),
        (["a", "b", "--output", "rows.csv"], "--output and --status are of the table: give --format"),
        (["a", "b", "--format", "table", "--output", "rows.csv"], "a table goes to the terminal"),
    ],
)
def test_what_does_not_go_together_is_said(dumps: Path, arguments: list[str], words: str) -> None:
    result = run(*[dumps / a if len(a) == 1 else a for a in arguments])
    assert result.exit_code == 2 and words in result.stderr


def test_dumps_that_agree_but_lack_a_step_could_not_be_compared_as_a_whole(tmp_path: Path) -> None:
    import shutil

    record(tmp_path / "a", steps=2), record(tmp_path / "b", steps=2)
    shutil.rmtree(tmp_path / "b" / "step1")
    result = run(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 2 and "step 1 of rank 0 is not in" in result.stdout.splitlines()[0]
    part = run(tmp_path / "a", tmp_path / "b", "--step", "0")
    assert part.exit_code == 0, "what was asked for is there"


def test_recomputed_calls_are_compared_within_one_dump(dumps: Path) -> None:
    result = run(dumps / "a", "--recompute")
    assert result.exit_code == 2 and "no values compared" in result.stdout, "nothing was recomputed"
    assert "Note: no call in it was run again by checkpointing" in result.stdout


def test_a_mapping_that_was_found_is_written(dumps: Path, tmp_path: Path) -> None:
    run(dumps / "a", dumps / "b", "--write-mapping", tmp_path / "map.yaml")
    assert (tmp_path / "map.yaml").exists()


def test_results_that_are_told_not_to_count_do_not(tmp_path: Path) -> None:
    record(tmp_path / "a"), record(tmp_path / "b")
    spoil(tmp_path / "b")
    result = run(tmp_path / "a", tmp_path / "b", "--no-data")
    assert result.exit_code == 0, "hashes alone are compared"


def test_nan_is_shown_where_it_stands_with_what_the_baseline_has_there(tmp_path: Path) -> None:
    def logarithm(path: Path, last: float) -> Path:
        with DumpMode(DumpConfig(path, data="full", level="aten", stacks=False)):
            torch.tensor([[1.0, 2.0], [1.0, 1.5]]).sub(torch.tensor([[0.0, 0.0], [0.0, last]])).log()
        return path

    pair = logarithm(tmp_path / "nan", 2.0), logarithm(tmp_path / "right", 1.0)
    shown = run(*pair, "--format", "json").stdout
    row = next(row for row in json.loads(shown)["rows"] if row["target"] == "Aten.log.0.forward" and row["nonfinite"])
    assert (row["nonfinite_at"], row["nonfinite_values"]) == ([1, 1], ["nan", "-0.693147"])
    payload = judged_section(list(compare(*pair).rows), *(open_dump(path).step(0).rank(0) for path in pair), "target")
    assert b'"nonfinite_values"' in payload and b"NaN" not in payload
