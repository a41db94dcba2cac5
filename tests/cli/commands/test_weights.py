from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.conftest import Run

WEIGHT = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "port.safetensors", tmp_path / "original.safetensors"
    save_file({f"layers.{n}.fc.weight": (WEIGHT + n).T.contiguous() for n in range(3)}, one)
    save_file({f"h.{n}.c_fc.weight": WEIGHT + n for n in range(3)}, other)
    return one, other


def test_text(run: Run, files: tuple[Path, Path]) -> None:
    result = run("weights", *files)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"All weights are accounted for: {files[0]} (3 tensors), {files[1]} (3 tensors)"
    assert lines[-1] == "  3 x layers.*.fc.weight = h.*.c_fc.weight (0-2): transposed"


def test_json_csv_and_files(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    rows = json.loads(run("weights", *files, "--format", "json").stdout)["rows"]
    assert [(row["target"], row["how"], row["accounted"]) for row in rows] == [
        (f"layers.{n}.fc.weight", "transposed", True) for n in range(3)
    ]
    table = list(csv.DictReader(io.StringIO(run("weights", *files, "--format", "csv").stdout)))
    assert [row["baseline"] for row in table] == [f"h.{n}.c_fc.weight" for n in range(3)]
    for form in ("text", "json", "csv"):
        out = tmp_path / f"found.{form}"
        shown = run("weights", *files, "--format", form).stdout
        assert run("weights", *files, "--format", form, "--output", out).exit_code == 0
        assert out.read_text().replace("\r\n", "\n") == shown.replace("\r\n", "\n")


def test_exit_codes(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.safetensors"
    save_file({"h.0.c_fc.weight": WEIGHT + 0.5}, wrong)
    result = run("weights", files[0], wrong)
    assert result.exit_code == 1
    assert "Not accounted for:" in result.stdout
    wrong.write_bytes(b"no header")
    for path in (wrong, tmp_path / "absent"):
        failed = run("weights", files[0], path)
        assert failed.exit_code == 2
        assert failed.output.startswith("Error: ")
        assert str(path) in failed.output


def test_names_from_a_file_give_a_terminal_no_orders(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    save_file({"\x1b[31mh.weight": WEIGHT}, tmp_path / "evil.safetensors")
    result = run("weights", files[0], tmp_path / "evil.safetensors")
    assert "\x1b" not in result.output
