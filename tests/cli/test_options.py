"""Options that commands share: the first step and rank by default, filters, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from aten_dump.cli.options import (
    allow_ops_option,
    dump_argument,
    filter_options,
    limit_option,
    open_rank,
    place_options,
    selected,
)
from aten_dump.dump.call_filter import Wanted
from aten_dump.errors import MissingDataError
from tests.dump.scenario import linear_step


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for step, rank in ((3, 1), (3, 2), (5, 1)):
        linear_step(tmp_path / "dump", step=step, rank=rank).builder.finish()
    return tmp_path / "dump"


@pytest.mark.parametrize(
    ("step", "rank", "found"), [(None, None, (3, 1)), (5, None, (5, 1)), (None, 2, (3, 2)), (3, 2, (3, 2))]
)
def test_the_first_step_and_its_first_rank_unless_asked(
    two: Path, step: Any, rank: Any, found: tuple[int, int]
) -> None:
    opened = open_rank(two, step, rank)
    assert (opened.step, opened.rank) == found


def test_a_step_that_is_not_there_says_which_are(two: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="3"):
        open_rank(two, 4, None)
    with pytest.raises(MissingDataError, match="1"):
        open_rank(two, 5, 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text("{}")
    with pytest.raises(MissingDataError, match="has no recorded steps"):
        open_rank(tmp_path / "empty", None, None)


def test_without_filters_all_calls_are_meant_and_none_is_listed(two: Path) -> None:
    rank = open_rank(two, None, None)
    assert selected(rank, Wanted()) is None
    found = selected(rank, Wanted(op="aten::mm"))
    assert found is not None and [call.op for call in found] == ["aten::mm"]
    nothing = selected(rank, Wanted(phase="recompute"))
    assert nothing is not None and len(nothing) == 0


def test_filters_that_match_nothing_name_what_is_like_them(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = open_rank(two, None, None)
    assert not selected(rank, Wanted(op="adddmm", module="Net.fc1"))
    none, near = capsys.readouterr().err.splitlines()
    assert none == f"no call of {rank.where} matches these filters; it has {len(rank.calls)} calls"
    assert near.startswith("no op matches 'adddmm', nearest: ") and "aten::addmm" in near
    assert near.endswith(
        f"; no module matches 'Net.fc1', nearest: net.fc, net. List them with `{rank.command('show')}`"
    )
    assert not selected(rank, Wanted(op="addmm", phase="recompute"))
    assert len(capsys.readouterr().err.splitlines()) == 1, "each matches some"


def asked(*arguments: str) -> Any:
    """The parameters of a command that has all shared options."""
    found: dict[str, Any] = {}

    @click.command()
    @dump_argument
    @place_options
    @filter_options
    @allow_ops_option
    @limit_option(30, "rows")
    def command(**given: Any) -> None:
        found.update(given)

    result = CliRunner().invoke(command, list(arguments))
    return found if found else result.output


def test_options_arrive_by_name() -> None:
    found = asked(
        "my dump",
        "--step",
        "3",
        "--name",
        "addmm",
        "--kind",
        "aten",
        "--allow-ops",
        "a::*",
        "--allow-ops",
        "b::x",
        "--limit",
        "0",
    )
    assert found == {
        "dump": Path("my dump"), "step": 3, "rank": None, "wanted": Wanted(kind="aten", name="addmm"), "allow_ops": ("a::*", "b::x"), "limit": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["d", "--kind", "kernel"], "aten"),
        (["d", "--phase", "x"], "recompute"),
        (["d", "--limit", "-1"], "--limit"),
        ([], "DUMP"),
        (["d", "--step", "one"], "--step"),
    ],
)
def test_what_is_not_allowed_says_what_is(arguments: list[str], word: str) -> None:
    output = asked(*arguments)
    assert isinstance(output, str) and word in output


def test_help_says_what_a_limit_is_by_default() -> None:
    assert "30 on a terminal, all in a pipe" in " ".join(asked("--help").split())
