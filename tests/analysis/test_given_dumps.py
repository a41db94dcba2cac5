"""compare and replay take paths, dumps, steps and ranks; the command line's exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aten_dump import ConfigError, DumpConfig, DumpMode, MissingDataError, compare, open_dump, replay
from aten_dump.analysis.given_dumps import chosen, opened, rank_of
from aten_dump.cli.main import main
from tests.analysis.by_distance.steps import record, seeded
from tests.dump.building import Builder


def twice(path: Path, factor: float = 1.0) -> Path:
    return record(path, lambda step: (seeded(4, 4, seed=step) * (factor if step else 1.0)).sum(), steps=2)


def test_compare_takes_paths_dumps_steps_and_ranks(tmp_path: Path) -> None:
    one, other = twice(tmp_path / "one", 1.5), twice(tmp_path / "other")
    dumps = open_dump(one), open_dump(other)
    assert compare(one, dumps[1]).verdict == "different"
    assert compare(dumps[0].step(0), dumps[1].step(0)).verdict == "same"
    later = compare(dumps[0].step(1).rank(0), dumps[1].step(1).rank(0))
    assert later.verdict == "different"
    assert [e.steps for e in later.ranks] == [(1, 1)]
    with pytest.raises(ConfigError, match="the other several"):
        compare(dumps[0].step(0), other)
    with pytest.raises(ConfigError, match="name it once"):
        compare(dumps[0].step(0), dumps[1].step(0), step=0)


def test_replay_takes_paths_dumps_steps_and_ranks(tmp_path: Path) -> None:
    path = twice(tmp_path / "dump")
    dump = open_dump(path)
    names: list[Any] = [
        [(op.name, found.step) for op in found.ops]
        for found in (replay(path), replay(dump), replay(dump.step(0)), replay(dump.step(0).rank(0)))
    ]
    assert names[0]
    assert all(other == names[0] for other in names)
    assert replay(dump.step(1)).step == 1


def test_all_steps_are_replayed_but_empty_ones(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", ops=["aten::relu"])) as dump:
        seeded(4, 4).square()
        dump.step()
        seeded(4, 4).relu()
        dump.step()
    result = CliRunner().invoke(main, ["replay", "--all", str(tmp_path / "dump")])
    assert result.exit_code == 0, result.output
    assert "(step 0, rank 0) has no aten calls: skipped" in result.output
    assert " ops replayed" in result.output
    assert replay(tmp_path / "dump").step == 1, "the first with calls"


def test_what_is_ignored_does_not_count(tmp_path: Path) -> None:
    one, other = twice(tmp_path / "one", 1.5), twice(tmp_path / "other")
    assert CliRunner().invoke(main, ["compare", str(one), str(other)]).exit_code == 1
    ignored = CliRunner().invoke(main, ["compare", str(one), str(other), "--ignore", "aten::(mul|sum)"])
    assert ignored.exit_code == 0, ignored.output


def test_a_failure_of_the_tool_is_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("aten_dump.analysis.compare.layouts_differ", broken)
    one = twice(tmp_path / "one")
    result = CliRunner().invoke(main, ["compare", str(one), str(one)])
    assert result.exit_code == 3
    assert "a bug of ours" in result.output
    assert CliRunner().invoke(main, ["compare", str(one), str(tmp_path / "none")]).exit_code == 2


# -- what a name stands for ------------------------------------------------------------------------------------------


def test_a_dump_and_the_step_and_rank_that_were_named(tmp_path: Path) -> None:
    dump = open_dump(twice(tmp_path / "dump"))
    step = dump.step(1)
    assert opened(dump) == (dump, None, None)
    assert opened(step) == (dump, 1, None)
    for given, named in ((str(dump.path), (None, None)), (dump.path, (None, None)), (step.rank(0), (1, 0))):
        found = opened(given)
        assert found[0].path == dump.path and found[1:] == named


def test_a_step_is_named_once_and_on_both_sides() -> None:
    assert chosen("step", None, (None, None)) is None
    assert chosen("step", "3:0", (None, None)) == "3:0" and chosen("rank", 0, (None, None)) == 0
    assert chosen("step", None, (3, 0)) == "3:0" and chosen("rank", None, (0, 0)) == "0:0"
    for given in ((0, 0), (0, None), (None, 0)):
        with pytest.raises(ConfigError, match="rank is 0, and the target or baseline is one rank already"):
            chosen("rank", 0, given)
    for given in ((0, None), (None, 0)):
        with pytest.raises(ConfigError, match="one side is one step, the other several"):
            chosen("step", None, given)


def test_the_first_rank_with_calls(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    Builder(path, step=0).finish()
    for step in (1, 2):
        b = Builder(path, step=step)
        b.call(b.op("aten", "aten::relu", "Aten", "relu"))
        b.finish()
    dump = open_dump(path)
    assert rank_of(path).step == rank_of(dump).step == 1
    assert rank_of(dump.step(2)).step == 2
    assert rank_of(dump.step(0)).step == 0, "though it has none"
    own = dump.step(2).rank(0)
    assert rank_of(own) is own
    empty = open_dump(Builder(tmp_path / "empty").finish())
    assert rank_of(empty).step == 0


def test_a_dump_of_no_steps_has_no_rank(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps="9")) as dump:
        dump.step()
    with pytest.raises(MissingDataError, match="has no recorded steps"):
        rank_of(tmp_path / "dump")
