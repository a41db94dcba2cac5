"""recover: finishes what was interrupted, and goes on past what cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

from click.testing import CliRunner, Result

from aten_dump import open_dump
from aten_dump.cli.commands.recover import command
from tests.dump.foreign.test_foreign import GOLDEN


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_what_was_interrupted_is_finished_once(torn: Path) -> None:
    result = run(torn)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("step 0 rank 1: ")
    assert result.stdout.splitlines()[-1] == "1 of 2 step/rank folders recovered, 1 needed nothing"
    assert all(rank.complete for rank in open_dump(torn).all_ranks())
    assert run(torn).stdout == "0 of 2 step/rank folders recovered, 2 needed nothing\n"


def test_one_that_cannot_be_recovered_does_not_stop_the_others(torn: Path) -> None:
    shutil.copytree(torn / "step0" / "rank1", torn / "step0" / "rank2")
    index = torn / "step0" / "rank1" / "index.msgpack"
    index.write_bytes(b"\x00" * 50)
    result = run(torn)
    assert result.exit_code == 2 and result.stderr.startswith("Error: ")
    assert result.stdout.splitlines()[-1] == "1 of 3 step/rank folders recovered, 1 needed nothing, 1 could not be"


def test_what_has_no_first_record_is_not_said_to_need_nothing(torn: Path) -> None:
    (torn / "step0" / "rank1" / "index.msgpack").write_bytes(b"")
    result = run(torn)
    assert result.exit_code == 2 and "cut short before its first record" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 of 2 step/rank folders recovered, 1 needed nothing, 1 could not be"


def test_what_another_tool_recorded_is_said_to_be_its(tmp_path: Path) -> None:
    result = run(GOLDEN / "msprobe" / "L1-statistics")
    assert result.exit_code == 2 and "recorded by another tool" in result.stderr
