"""Rank and world size: the process group's, else the launcher's, else one process alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from aten_dump.capture.launcher_rank import attempts_before, folder_of_attempt, rank_and_world_size

NAMES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*NAMES, "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_without_a_launcher_is_alone(environment: pytest.MonkeyPatch) -> None:
    assert rank_and_world_size() == (0, 1)


@pytest.mark.parametrize(
    ("rank", "size"), [*zip(NAMES[::2], NAMES[1::2], strict=True), ("PMI_RANK", "PMI_SIZE")], ids=lambda name: name
)
def test_each_launcher_is_known_by_its_variables(environment: pytest.MonkeyPatch, rank: str, size: str) -> None:
    environment.setenv(rank, "3")
    assert rank_and_world_size() == (0, 1), "half of it says nothing"
    environment.setenv(size, "8")
    assert rank_and_world_size() == (3, 8)
    environment.setenv(size, "eight")
    assert rank_and_world_size() == (0, 1)


def test_torchrun_inside_slurm_is_torchrun(environment: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES[:4], ("5", "16", "1", "2"), strict=True):
        environment.setenv(name, value)
    assert rank_and_world_size() == (5, 16)
    environment.setenv("RANK", "")
    assert rank_and_world_size() == (1, 2)


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_a_process_group_goes_before_any_launcher(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RANK", "3")
    environment.setenv("WORLD_SIZE", "8")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert rank_and_world_size() == (0, 1)
    finally:
        dist.destroy_process_group()
    assert rank_and_world_size() == (3, 8) and torch.distributed.is_available()


@pytest.mark.parametrize(
    ("count", "path", "folder", "restarts"),
    [
        (None, "dump", "dump", 0),
        ("0", "dump", "dump", 0),
        ("2", "dump", "dump/restart2", 2),
        (None, "runs/{restart}/dump", "runs/restart0/dump", 0),
        ("3", "runs/{restart}/dump", "runs/restart3/dump", 3),
        ("-1", "dump", "dump", 0),
        ("\u0663", "dump", "dump", 0),
    ],
)
def test_each_attempt_has_a_folder_of_its_own(
    environment: pytest.MonkeyPatch, count: str | None, path: str, folder: str, restarts: int
) -> None:
    environment.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if count is not None:
        environment.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert folder_of_attempt(path) == (Path(folder).absolute(), restarts)


def test_attempts_lie_in_the_folder_of_the_first_or_are_dumps_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for restarts, expected in ((0, []), (1, ["/d"]), (3, ["/d/restart2", "/d/restart1", "/d"])):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        assert attempts_before(*folder_of_attempt("/d")) == [Path(path) for path in expected]
    assert attempts_before(*folder_of_attempt("/runs/{restart}/dump")) == []
