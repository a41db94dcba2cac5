"""What a user names to be written is whole or as it was, and devices, pipes and links stay what they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli.main import main
from aten_dump.whole_files import replaced_when_whole, url_scheme


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("old")
    with replaced_when_whole(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["rows"]

    def fails() -> None:
        with replaced_when_whole(path) as part:
            part.write_text("newer")
            raise KeyError("of who writes")

    with pytest.raises(KeyError):
        fails()
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["rows"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/rows")
    for text in ("new", "newer"):
        with replaced_when_whole(tmp_path / "link") as part:
            part.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "rows").read_text() == text


@pytest.mark.parametrize(
    "words", [("report", "DUMP"), ("stats", "DUMP", "--format", "csv"), ("compare", "DUMP", "DUMP", "--format", "json")]
)
def test_commands_write_to_a_pipe_as_it_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).relu()
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    named = [str(tmp_path / "dump") if word == "DUMP" else word for word in words]
    assert CliRunner().invoke(main, [*named, "--output", str(pipe)]).exit_code == 0
    assert pipe.is_fifo()
    reader.join(20)
    assert read and read[0]


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3://bucket/dump", "s3"),
        (Path("gs://bucket/dump"), "gs"),
        ("file:///tmp/dump", "file"),
        ("HTTPS://host/dump", "HTTPS"),
        ("dump", None),
        ("C:/dump", None),
        ("./s3://bucket", None),
        ("/data/12:00/dump", None),
        ("run:1", None),
        ("lr=1e-3:/dump", None),
    ],
)
def test_a_url_is_told_from_a_path(path: str | Path, scheme: str | None) -> None:
    assert url_scheme(path) == scheme


def test_commands_refuse_urls_and_make_no_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with DumpMode(DumpConfig(path="dump")):
        torch.ones(2).exp()
    before = os.listdir(tmp_path)
    for arguments in (
        ["run", "--path", "hdfs://bucket/dump", "--", "python", "-c", ""],
        ["ls", "hdfs://bucket/dump"],
        ["recover", "file:///tmp/dump"],
        ["export", "dump", "--to", "torch", "--out", "s3://bucket/out"],
        ["report", "dump", "--output", "s3://bucket/report.html"],
        ["stats", "dump", "--output", "s3://bucket/values.csv", "--format", "csv"],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert "URL" in result.stderr and "local" in result.stderr, (arguments, result.stderr)
    assert os.listdir(tmp_path) == before
