"""Names and messages of a dump give no orders to a terminal or a spreadsheet."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump.cli.files import opened
from aten_dump.cli.main import main
from aten_dump.dump import open_dump
from aten_dump.plain_text import cell, visible, without_secrets
from aten_dump.report.value_rows import columns, value_rows, write_csv
from aten_dump.store import records as r
from tests.checkout import ROOT
from tests.dump.building import Builder

ORDERS = ("\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\nb", "a\rb", "\u202eevil", "\u2028", "\udcff", "\x00")


@pytest.mark.parametrize("order", ORDERS)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(order: str) -> None:
    shown = visible(f"x{order}y")
    assert shown.isprintable() and shown.startswith("x") and shown.endswith("y")
    assert visible(shown) == shown


def test_what_is_harmless_stays() -> None:
    text = "Aten.add_.3.forward f32[8, 128] Größe 世界 → 🙂"
    assert visible(text) == text


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_cell_is_no_formula(formula: str) -> None:
    assert cell(formula)[0] == "'"
    assert cell("Aten.add") == "Aten.add"
    assert cell(-1.5) == -1.5


def hostile(root: Path) -> Path:
    builder = Builder(root)
    op = builder.op("aten", "\x1b[2Jop", "=cmd|' /C calc'!A0", "\x1b]0;owned\x07api", ("\x1b[31mself",))
    x = builder.value(torch.ones(2))
    builder.call(
        op, args=[[r.TREE_VALUE, x], "\x1b[41mtext"], outputs=[r.TREE_VALUE, x], error="\x1b[5mblink\nfake line"
    )
    builder.emit(r.Note(r.NOTE, "\x1b[2J", "\x1b[2Jnote\u202e", 2))
    return builder.finish()


def test_no_command_prints_an_order(tmp_path: Path) -> None:
    dump = hostile(tmp_path / "dump")
    name = open_dump(dump).rank(0, 0).calls[0].name
    for words in (
        ["ls"],
        ["show"],
        ["show", name],
        ["show", "\x1b[2Jx"],
        ["stats"],
        ["stats", "--format", "csv"],
        ["verify"],
    ):
        result = CliRunner().invoke(main, [words[0], str(dump), *words[1:]])
        assert result.exit_code in (0, 1, 2) and not isinstance(result.exception, UnicodeError)
        text = result.output + (result.stderr or "")
        assert all(line.isprintable() for line in text.split("\n")), (words, text)


def test_csv_has_no_formulas(tmp_path: Path) -> None:
    rank = open_dump(hostile(tmp_path / "dump")).rank(0, 0)
    file = io.StringIO()
    write_csv(value_rows(rank.calls), columns([rank]), file)
    cells = [found for row in csv.reader(io.StringIO(file.getvalue())) for found in row]
    assert any("cmd" in found for found in cells)
    assert not [found for found in cells if found.startswith(("=", "+", "@", "\t")) or "\x1b" in found]


def test_an_output_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("before")
    with pytest.raises(KeyError), opened(path) as file:  # noqa: PT012
        file.write("half")
        file.flush()
        assert path.read_text() == "before"
        raise KeyError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with opened(path) as file:
        file.write("all\n")
    assert path.read_text() == "all\n" and list(tmp_path.iterdir()) == [path]


FORMULAS = ("=cmd|' /C calc'!A0", "+1+cmd", "-2+cmd", "@SUM(cmd)")


def test_no_file_of_csv_that_export_writes_holds_a_formula(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    x = [r.TREE_VALUE, builder.value(torch.ones(2))]
    for formula in FORMULAS:
        for op in (f"aten::{formula}", f"aten::{formula}{'x' * 260}"):
            builder.call(
                builder.op("aten", op, formula, formula, ("self",)), module=f"a\n{formula}", args=[x], outputs=x
            )
    builder.finish()
    done = CliRunner().invoke(main, ["export", str(tmp_path / "dump"), "--to", "npy", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    files = sorted((tmp_path / "out").rglob("*.csv"))
    assert {"statistic.csv", "mapping.csv", "ms_execution_order_graph_0.csv"} <= {file.name for file in files}
    cells = [found for file in files for row in csv.reader(file.open(newline="")) for found in row]
    assert any("cmd" in found for found in cells)
    assert not [found for found in cells if found.startswith(("=", "+", "-", "@"))]
    assert not [line for file in files for line in file.read_text().splitlines() if line.startswith(FORMULAS)]


def test_csv_is_written_in_one_place() -> None:
    package = ROOT / "aten_dump"
    writers = [path for path in package.rglob("*.py") if re.search(r"csv\.(writer|DictWriter)", path.read_text())]
    assert writers == [package / "plain_text.py"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--api-key", "SECRET", "--lr", "0.1"], ["--api-key", "***", "--lr", "0.1"]),
        (["--hf_token=SECRET", "train"], ["--hf_token=***", "train"]),
        (["-wandbKey", "SECRET"], ["-wandbKey", "***"]),
        (["trainer.auth.password=SECRET"], ["trainer.auth.password=***"]),
        (["AWS_SECRET_ACCESS_KEY=SECRET", "x"], ["AWS_SECRET_ACCESS_KEY=***", "x"]),
        (["--credentials", "SECRET", "SECRET2", "-v"], ["--credentials", "***", "***", "-v"]),
        (['{"lr": 1, "api_key": "SECRET"}'], ['{"lr": 1, "api_key": ***']),
        (["--data", "https://me:SECRET@host/x"], ["--data", "https://***@host/x"]),
        (["s3://bucket/x?token=SECRET"], ["s3://bucket/x?token=***"]),
        (["--passphrase=a\nSECRET"], ["--passphrase=***"]),
        (["--tokenizer", "gpt2", "--keyword", "x", "--lr=1e-3", "a@b", "-"],
         ["--tokenizer", "gpt2", "--keyword", "x", "--lr=1e-3", "a@b", "-"]),
    ],
)  # fmt: skip
def test_values_of_what_is_named_as_a_secret_are_hidden(arguments: list[str], shown: list[str]) -> None:
    assert without_secrets(arguments) == shown


def test_neither_a_dump_nor_a_report_holds_a_secret_of_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nfrom aten_dump import DumpConfig, DumpMode\n"
        "for path, argv in (('with', True), ('without', False)):\n"
        "    with DumpMode(DumpConfig(path, argv=argv)):\n        torch.ones(2).exp()\n"
    )
    secret = "hunter" + "2hunter2"
    command = [sys.executable, str(script), "--api-key", secret, f"--token={secret}", "--lr", "0.125"]
    subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert open_dump(tmp_path / "with").run["command"][1:] == ["--api-key", "***", "--token=***", "--lr", "0.125"]
    assert "command" not in open_dump(tmp_path / "without").run
    done = CliRunner().invoke(main, ["report", str(tmp_path / "with"), "--output", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path
