"""Dumps that the first code of format version 1 wrote read as they did then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aten_dump import open_dump
from aten_dump.store import recovery
from aten_dump.store.checking.verification import verify
from tests.golden.record import facts

DUMPS = sorted(path for path in (Path(__file__).parent / "v1").iterdir() if path.is_dir())


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_all_that_was_in_it_is_read(dump: Path) -> None:
    expected = json.loads((dump / "expected.json").read_text(encoding="utf-8"))
    found = facts(dump)
    assert found.keys() == expected.keys()
    for place, step in expected.items():
        for part, facts_then in step.items():
            assert found[place][part] == facts_then, (place, part)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_it_is_whole(dump: Path) -> None:
    problems = [problem for rank in open_dump(dump).all_ranks() for problem in verify(rank.directory)]
    assert len(problems) == (dump.name == "killed")


def test_an_interrupted_one_is_recovered(tmp_path: Path) -> None:
    dump = Path(shutil.copytree(DUMPS[2], tmp_path / "dump"))
    assert dump.name and DUMPS[2].name == "killed"
    before = facts(dump)["step1/rank0"]
    report = recovery.recover(dump / "step1" / "rank0")
    assert report.committed and report.completed_shards == [0] and report.lost_blobs == []
    after = facts(dump)["step1/rank0"]
    assert after.pop("complete") and not before.pop("complete")
    assert after == before
    assert verify(dump / "step1" / "rank0") == []
