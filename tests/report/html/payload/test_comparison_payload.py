"""A report of a comparison says what `compare` says: the cause, the rows, the partners."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from aten_dump import compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.comparison_rows import comparison_rows
from aten_dump.cli.main import main
from tests.browser import dumps
from tests.report.sections_read import Read, sections_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    dumps.scaled_bn(folder), dumps.baseline(folder), dumps.structure(folder), dumps.inference(folder)
    return folder


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return compare(folder / "target", folder / "baseline")


@pytest.fixture(scope="module")
def sections(folder: Path) -> dict[str, Read]:
    output = folder / "pair.html"
    result = CliRunner().invoke(main, ["report", str(folder / "target"), str(folder / "baseline"), "-o", str(output)])
    assert result.exit_code == 0, result.output
    return sections_of(output)


def test_the_answer_is_that_of_the_comparison(comparison: Comparison, sections: dict[str, Read]) -> None:
    answer = sections["outline"].json["comparison"]
    cause = comparison.cause
    assert cause is not None
    assert answer["verdict"] == "different" == comparison.verdict
    assert answer["text"] == comparison.answer()
    shown = answer["cause"]
    assert shown["call"] == cause.row.place.call == "Aten.native_batch_norm.2.forward"
    assert (shown["slot"], shown["text"], shown["inputs"]) == (cause.row.slot, cause.text, cause.inputs)
    assert shown["source"] == cause.row.place.source
    assert "models.py" in shown["source"]
    assert shown["module"] == "layers.0.bn2"
    assert answer["travel"][0]["call"] == shown["call"]
    assert len({(one["module"], one["phase"]) for one in answer["travel"] if "call" in one}) > 10


@pytest.mark.parametrize("side", ["target", "baseline"])
def test_every_row_is_there_under_its_call(
    side: str, folder: Path, comparison: Comparison, sections: dict[str, Read]
) -> None:
    names = [call.name for call in open_dump(folder / side).rank(0, 0).calls]
    judged = sections[f"{side}/0/0/judged"]
    expected = sorted(
        (names.index(row[side]), row["slot"] or "", row["status"])
        for row in comparison_rows(comparison.rows)
        if row[side]
    )
    statuses, texts = judged.json["statuses"], judged.json["row.slot"]
    columns = (judged.columns[f"row.{name}"] for name in ("call", "slot", "status"))
    found = sorted((call, texts[slot], statuses[status]) for call, slot, status in zip(*columns, strict=True))
    assert found == expected
    guilty = names.index("Aten.native_batch_norm.2.forward")
    assert statuses[judged.columns["status"][guilty]] == "different"
    assert judged.columns["partner"][guilty] == guilty


def test_numbers_of_rows_are_those_of_the_comparison(
    folder: Path, comparison: Comparison, sections: dict[str, Read]
) -> None:
    names = [call.name for call in open_dump(folder / "target").rank(0, 0).calls]
    judged = sections["target/0/0/judged"]
    ratios = judged.numbers("row.ratio")
    at = {
        (call, judged.json["row.slot"][slot]): row
        for row, (call, slot) in enumerate(zip(judged.columns["row.call"], judged.columns["row.slot"], strict=True))
    }
    measured = [row for row in comparison_rows(comparison.rows) if row["target"] and row["ratio"] is not None]
    assert len(measured) > 50
    for row in measured:
        shown = ratios[at[names.index(row["target"]), row["slot"]]]
        assert shown == pytest.approx(row["ratio"], rel=1e-5)


def test_dumps_that_could_not_be_compared_get_a_report_that_says_so(folder: Path) -> None:
    output = folder / "not.html"
    result = CliRunner().invoke(
        main, ["report", str(folder / "structure"), str(folder / "inference"), "-o", str(output)]
    )
    assert result.exit_code == 0, result.output
    assert sections_of(output)["outline"].json["comparison"]["verdict"] == "incomparable"
