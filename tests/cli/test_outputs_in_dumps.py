"""A file that a command is asked to write is never part of a dump, be it read by the command or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from aten_dump.cli.main import main
from tests.cli.commands.tiny import record
from tests.dump.foreign.test_foreign import GOLDEN
from tests.torture.outside import state_of

COMMANDS = [
    ["report", "DUMP", "--output", "FILE"], ["report", "OTHER", "DUMP", "--output", "FILE"],
    ["stats", "DUMP", "--format", "csv", "--output", "FILE"],
    ["compare", "DUMP", "OTHER", "--format", "csv", "--output", "FILE"],
    ["compare", "OTHER", "DUMP", "--format", "parquet", "--output", "FILE"],
    ["compare", "DUMP", "OTHER", "--write-mapping", "FILE"],
    ["replay", "DUMP", "Aten.mm.0.forward", "--emit", "FILE"],
    ["export", "DUMP", "--to", "perfetto", "--out", "FILE", "--overwrite"],
    ["report", "OTHER", "--output", "FILE"], ["stats", "OTHER", "--format", "csv", "--output", "FILE"],
    ["replay", "OTHER", "Aten.mm.0.forward", "--emit", "FILE"],
    ["export", "OTHER", "--to", "perfetto", "--out", "FILE", "--overwrite"],
]  # fmt: skip
FILES = ["run.json", "step0/rank0/index.msgpack", "step0/rank0/shard-00000.safetensors", "LINK"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    record(root / "dump"), record(root / "other")
    (root / "link").symlink_to(root / "dump" / "step0" / "rank0" / "index.msgpack")
    return root


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_it_is_refused_and_the_dump_stays(words: list[str], file: str, recorded: Path) -> None:
    before = state_of(recorded / "dump")
    path = recorded / "link" if file == "LINK" else recorded / "dump" / file
    places = {"DUMP": recorded / "dump", "OTHER": recorded / "other", "FILE": path}
    result = CliRunner().invoke(main, [str(places.get(word, word)) for word in words])
    assert result.exit_code == 2 and "name a place outside the dump" in result.output, result.output
    assert state_of(recorded / "dump") == before


@pytest.mark.parametrize("part", [".", "step0", "step0/rank0"])
def test_no_export_replaces_the_folder_of_another_dump(part: str, recorded: Path) -> None:
    before = state_of(recorded / "dump")
    words = ["export", str(recorded / "other"), "--to", "graph", "--out", str(recorded / "dump" / part), "--overwrite"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "name a place outside the dump" in result.output, result.output
    assert state_of(recorded / "dump") == before


def test_dumps_of_other_tools_are_kept_too(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "msprobe" / "mix-tensor", tmp_path / "dump")
    file = next((tmp_path / "dump").rglob("dump.json"))
    before = state_of(tmp_path / "dump")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "dump"), "--output", str(file)])
    assert result.exit_code == 2 and "outside the dump" in result.output
    assert state_of(tmp_path / "dump") == before


def test_a_new_file_beside_a_dump_or_an_old_one_elsewhere_is_written(recorded: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("old")
    for file in (old, recorded / "dump" / "values.csv"):
        words = ["stats", str(recorded / "dump"), "--format", "csv", "--output", str(file)]
        assert CliRunner().invoke(main, words).exit_code == 0 and file.read_text().startswith("step,")
