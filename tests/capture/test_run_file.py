"""run.json: who writes it, what it says of the machine and the run, and what of the steps."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, StoreError
from aten_dump.capture.run_file import Run, describe_run
from aten_dump.store.records import FORMAT_VERSION, NOTE, Note


def run_of(path: Path, rank: int = 0, world_size: int = 1, **config: Any) -> Run:
    return Run(DumpConfig(path=path, **config), path, rank, world_size)


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run.json").read_text())
    return found


@pytest.mark.parametrize(("ranks", "writers"), [("all", {0}), ("0", {0}), ("2", {0, 2}), ("1-3", {0, 1}), ("9", {0})])
def test_rank_0_writes_it_and_the_first_rank_that_records(tmp_path: Path, ranks: str, writers: set[int]) -> None:
    """Rank 0 alone does not do: where it is not recorded it may not even enter the mode."""
    found = set()
    for rank in range(4):
        path = tmp_path / f"dump{rank}"
        run_of(path, rank, 4, ranks=ranks).open_writer().close()
        if (path / "run.json").exists():
            found.add(rank)
            assert written(path)["world_size"] == 4
    assert found == writers


def test_it_says_what_ran_and_how() -> None:
    config = DumpConfig(path="dump", ranks="1|3-9", data="full")
    info = describe_run(config, 5)
    assert (info["format_version"], info["world_size"], info["ranks"]) == (FORMAT_VERSION, 5, "1|3-4")
    assert (
        info["packages"]["torch"] == torch.__version__.partition("+")[0]
        or info["packages"]["torch"] in torch.__version__
    )
    assert ("torch_npu" in info["packages"]) == (importlib.util.find_spec("torch_npu") is not None)
    assert all(info["packages"].values())
    assert info["threads"] == torch.get_num_threads() and len(info["command"]) == len(sys.argv)
    assert info["config"]["data"] == "full" and info["recorder"] in ("compiled", "pure Python")
    assert info["devices"][0] == "cpu" and json.dumps(info)


def test_it_is_there_before_the_first_step_and_says_at_the_end_what_was_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    run = run_of(path)
    writer = run.open_writer()
    assert written(path)["steps"] == "" and "coverage" not in written(path)
    writer.close()
    run.count_step(1, [Note(NOTE, "traced", "", 3)])
    run.count_step(1, [])
    run.finish()
    assert written(path)["coverage"] == {"rank": 0, "steps": 2, "notes": {"traced": 3}}


def test_a_rank_that_did_not_write_it_adds_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path / "dump", 1, 2)
    run.open_writer().close()
    run.finish()
    assert not (tmp_path / "dump" / "run.json").exists()


def test_where_it_cannot_be_written_no_writer_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    (path / "run.json").mkdir(parents=True)
    before = threading.active_count()
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=r"run\.json"):
            run_of(path, overwrite=overwrite).open_writer()
    assert threading.active_count() == before


NAMES = "record it without them once, and `aten-dump show` lists its names"


@pytest.mark.parametrize(
    ("config", "steps", "words"),
    [
        ({}, [(3, 0)], None),
        (
            {"ops": ("nosuch",)},
            [(0, 5), (0, 6)],
            f"of 11 calls none is selected by level='mix', ops=('nosuch',); {NAMES}",
        ),
        ({"ops": ("nosuch",)}, [(0, 5), (1, 4)], None),
        ({"ops": ("nosuch",)}, [(0, 0)], None),
        ({"steps": "7-9"}, [], "DumpConfig.steps is '7-9', and the last step was 2; is dump.step() called?"),
        ({"steps": "none"}, [], None),
        ({"steps": "1"}, [], None),
    ],
)
def test_it_knows_why_nothing_was_recorded(
    tmp_path: Path, config: dict[str, Any], steps: list[tuple[int, int]], words: str | None
) -> None:
    run = run_of(tmp_path, **config)
    for calls, left_out in steps:
        run.count_step(calls, [Note(NOTE, "selection", "", left_out)])
    assert run.why_empty(run.config, 2) == words


def test_a_run_of_which_no_rank_is_selected_says_so_once(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    for ranks, rank in (("1-3", 0), ("4", 1), ("4", 0)):
        run_of(tmp_path, rank, 4, ranks=ranks).say_if_no_rank()
    assert [str(one.message) for one in recwarn] == [
        "aten_dump records nothing: DumpConfig.ranks is '4', and the run has ranks 0 to 3"
    ]
    words = "ranks is 3, and the run has rank 0 alone; is init_process_group"
    with pytest.warns(UserWarning, match=words) as told, DumpMode(DumpConfig(tmp_path / "none", ranks=3)):
        torch.ones(2)
    assert [one.filename for one in told] == [__file__] and not (tmp_path / "none").exists()
