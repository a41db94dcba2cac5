"""run.json: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump.errors import FormatError, MissingDataError, StoreError
from aten_dump.store import run_json as run
from aten_dump.store.run_json import read_run, write_run


def test_round_trip_and_replace(tmp_path: Path) -> None:
    root = tmp_path / "new" / "dump"
    write_run(root, {"world_size": 2, "user": "Zoë"})
    write_run(root, {"world_size": 4})
    assert read_run(root) == {"world_size": 4}
    assert [path.name for path in root.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, {"world_size": 2})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.os, "replace", fail)
    with pytest.raises(StoreError, match=r"run.json: No space left"):
        write_run(tmp_path, {"world_size": 4})
    assert read_run(tmp_path) == {"world_size": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="folder of a dump"):
        read_run(tmp_path)
    for text in ("{", "[1]", "\udc80"):
        (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(FormatError, match=r"run\.json"):
            read_run(tmp_path)
