"""Trees of groups: tensor, data and pipeline parallel groups are a line each, from what was recorded alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from aten_dump import DumpConfig, DumpMode
from aten_dump.analysis.meetings.group_trees import group_lines, group_rows
from aten_dump.analysis.meetings.meeting_points import RankGroup
from aten_dump.cli.commands.ls import command

WORLD = 24


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record ranks 2 x 3 x 4; all begin collectives on three dimensions and on all ranks."""
    for rank in range(WORLD):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(WORLD))
        dist.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
        mesh = init_device_mesh("cpu", (2, 3, 4), mesh_dim_names=("pp", "dp", "tp"))
        x = torch.ones(2)
        with DumpMode(DumpConfig(path=str(tmp_path / "job"), data="structure")) as dump:
            for group in (*mesh.get_all_groups(), None):
                dist.all_reduce(x, group=group)
            if rank == 5:
                x.neg()
            dump.step()
        dist.destroy_process_group()
    return tmp_path / "job"


def test_ls_shows_alike_ranks_and_kinds_of_groups_in_a_line_each(job: Path) -> None:
    lines = CliRunner().invoke(command, [str(job)]).stdout.splitlines()
    rows = [line.split()[:3] for line in lines if line.startswith("0 ")]
    assert rows == [["0", "0-4|6-23", "complete"], ["0", "5", "complete"]]
    assert [line for line in lines if line.startswith("groups ")] == [
        "groups mesh_tp: 6 groups of 4 ranks next to one another, as ranks 0-3",
        "groups unnamed: 24 ranks next to one another, ranks 0-23",
        "groups mesh_dp: 8 groups of 3 ranks 4 apart, as ranks 0|4|8",
        "groups mesh_pp: 12 groups of 2 ranks 12 apart, as ranks 0|12",
    ]


def test_groups_in_no_order_are_shown_by_their_size_behind_the_others() -> None:
    groups = [RankGroup("1", (0, 1)), RankGroup("2", (2, 3, 7)), RankGroup("3", (5, 4))]
    assert list(group_lines(groups)) == [
        "unnamed: 2 groups of 2 ranks next to one another, as ranks 0-1",
        "unnamed: 3 ranks, ranks 2-3|7",
    ]
    assert group_rows(groups)[1] == {"name": "unnamed", "groups": 1, "ranks": 3, "strides": [], "first": [2, 3, 7]}
