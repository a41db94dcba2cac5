"""Folders of MindSpore made by hand: which iteration is found where, and what was kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aten_dump.dump import open_dump

NAME = "Add.Default_network-Net_Add-op1.0.0.1623124369613540"
HEAD = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value\n"


def iteration(folder: Path, files: bool = True, table: bool = False) -> Path:
    folder.mkdir(parents=True)
    if files:
        np.save(folder / f"{NAME}.output.0.DefaultFormat.npy", np.ones(2, np.float32))
    if table:
        (folder / "statistic.csv").write_text(HEAD + f'{NAME.replace(".", ",", 4)},output,0,8,Float32,"(2,)",1,1\n')
    return folder


@pytest.mark.parametrize(("name", "step"), [("7", 7), ("saved", 0)])
def test_an_iteration_can_be_opened_alone(tmp_path: Path, name: str, step: int) -> None:
    dump = open_dump(iteration(tmp_path / name))
    assert (dump.steps, dump.ranks) == ([step], [0])


def test_iterations_below_ranks(tmp_path: Path) -> None:
    for rank, number in ((0, 3), (2, 3), (2, 11)):
        iteration(tmp_path / f"rank_{rank}" / "Net" / "0" / str(number))
    dump = open_dump(tmp_path)
    assert [(rank.step, rank.rank) for rank in dump.all_ranks()] == [(3, 0), (3, 2), (11, 2)]
    assert open_dump(tmp_path / "rank_2").ranks == [2]


@pytest.mark.parametrize(
    ("files", "table", "data"), [(True, True, "full"), (True, False, "tensor"), (False, True, "statistic")]
)
def test_what_was_kept(tmp_path: Path, files: bool, table: bool, data: str) -> None:
    rank = open_dump(iteration(tmp_path / "rank_0" / "Net" / "0" / "1", files, table).parents[3]).rank(1, 0)
    assert rank.header.config["data"] == data
    [call] = rank.calls
    assert call.name == "MindSpore.Add.0.forward"
    assert (call.outputs.has_data, call.outputs.stats is not None) == (files, table)
