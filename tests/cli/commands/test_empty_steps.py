"""Steps in which nothing ran, and dumps whose trigger has not fired, are no failures to any command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.cli.main import main
from aten_dump.store.checking.verification import verify


def record(path: Path, trigger: str | None = None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    with DumpMode(DumpConfig(path=path, data="full", trigger=trigger), model=model) as dump:  # type: ignore[arg-type]
        model(torch.ones(2, 3)).sum().backward()
        dump.step()
        with torch.no_grad():
            dump.step()
        dump.step()
        model(torch.ones(2, 3))
        dump.step()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "dump"
    record(path)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def test_a_step_that_was_ended_is_there_and_the_one_that_was_not_leaves_nothing(dump: Path) -> None:
    opened = open_dump(dump)
    assert list(opened.steps) == [0, 1, 2, 3]
    assert [len(opened.step(step).rank(0).calls) > 0 for step in opened.steps] == [True, False, False, True]
    assert all(verify(rank.directory) == [] and rank.missing == [] for rank in opened.all_ranks())
    assert not (dump / "step4").exists()


@pytest.mark.parametrize(
    "command",
    ["ls", "show", "show --step 1", "verify", "stats --step 1", "saved --step 1", "replay --all", "replay --step 1",
     "nonfinite", "nonfinite --step 2", "ls --live"],
)  # fmt: skip
def test_every_command_takes_it(dump: Path, command: str) -> None:
    name, *options = command.split()
    code, text = run(name, str(dump), *options)
    assert code == 0, text


def test_replay_goes_on(dump: Path) -> None:
    _, text = run("replay", str(dump), "--all")
    counts = [len(open_dump(dump).step(step).rank(0).calls.filter(kind="aten")) for step in (0, 3)]
    assert counts[0] >= 14 and counts[1] >= 3 and f"{sum(counts)} ops of 2 steps and ranks replayed" in text, text
    assert text.count("has no aten calls: skipped") == 2


def test_compare_and_report_take_it(dump: Path, tmp_path: Path) -> None:
    record(tmp_path / "again")
    assert compare(dump, tmp_path / "again").verdict == compare(dump, dump).verdict
    code, text = run("report", str(dump), str(tmp_path / "again"), "-o", str(tmp_path / "report.html"))
    assert code == 0 and (tmp_path / "report.html").stat().st_size > 0, text


@pytest.mark.parametrize("command", ["ls", "show", "stats", "saved", "verify", "replay", "replay --all", "nonfinite"])
def test_a_trigger_that_has_not_fired_is_no_failure(tmp_path: Path, command: str) -> None:
    record(tmp_path / "dump", "nonfinite")
    name, *options = command.split()
    code, text = run(name, str(tmp_path / "dump"), *options)
    assert code == 0, text
    if name not in ("ls", "verify"):
        assert "the trigger 'nonfinite'" in text and "has not fired: no step was written" in text


@pytest.fixture(scope="module")
def unselected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unselected") / "dump"
    model = torch.nn.Linear(3, 3)
    dump = DumpMode(DumpConfig(path=path, data="full", ops=("nosuch",)), model=model).start()
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        dump.step()
    with pytest.warns(UserWarning, match=r"recorded nothing: of \d+ calls none is selected by level='mix', ops=\('no"):
        dump.close()
    return path


@pytest.mark.parametrize("options", ["", "--step 1"])
def test_a_selection_that_matches_nothing_is_no_clean_bill(unselected: Path, options: str) -> None:
    code, text = run("nonfinite", str(unselected), *options.split())
    assert code == 2 and "could be judged" in text
    assert "rank 0) has no calls: " in text and "left out by the configuration: level='mix', ops=('nosuch',)" in text


def test_compare_says_that_the_selection_matched_nothing(unselected: Path, dump: Path) -> None:
    for sides in ((unselected, unselected), (unselected, dump), (dump, unselected)):
        code, text = run("compare", *map(str, sides), "--step", "0")
        assert code == 2, text
        assert f"{unselected} (step 0, rank 0) has no calls: " in text


def test_a_rank_that_is_not_there_has_not_been_searched(dump: Path) -> None:
    code, text = run("nonfinite", str(dump), "--rank", "4")
    assert code == 2 and "no step and rank that was asked for has calls" in text


def test_nothing_recorded_is_told_where_the_program_handles_an_error(tmp_path: Path) -> None:
    """As where a script tries again what has failed."""
    config = DumpConfig(path=str(tmp_path / "dump"), ops=("no::such",))
    try:
        raise ValueError("the first try")
    except ValueError:
        with pytest.warns(UserWarning, match="recorded nothing"), DumpMode(config):
            torch.ones(2).add(1)


def test_nothing_recorded_is_not_told_beside_an_error(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    config = DumpConfig(path=str(tmp_path / "dump"), ops=("no::such",))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), DumpMode(config):
        torch.ones(2).add(1).dot(torch.ones(3))
    assert not [one for one in recwarn if "recorded nothing" in str(one.message)]
