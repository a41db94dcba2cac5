"""Sources that hold the same are distinguished: reading one for the other is a bug, be it without effect yet."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from tests.analysis.held_out.devices import SPLIT, Device


def learn(path: Path, *, target_of_itself: bool = False, written_otherwise: bool = False, noise: bool = False) -> Path:
    """Record one step of Q-learning, whose target network is still a copy of the network."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(6, 130), nn.LayerNorm(130), nn.ReLU(), nn.Linear(130, 3))
    older = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters())
    states, rewards = torch.randn(2, 8, 6), torch.randn(8)
    with (
        Device(SPLIT if noise else {}),
        DumpMode(
            DumpConfig(path=str(path), data="tensor"), model=nn.ModuleDict({"net": network, "old": older})
        ) as dump,
    ):
        with torch.no_grad():
            best = (network if target_of_itself else older)(states[1]).max(-1).values
        wanted = rewards.add(best, alpha=0.9) if written_otherwise else rewards + 0.9 * best
        nn.functional.mse_loss(network(states[0])[:, 0], wanted).backward()
        optimizer.step()
        dump.step()
    return path


@pytest.mark.parametrize("change", [{"noise": True}, {"written_otherwise": True}], ids=str)
def test_an_honest_step_agrees(change: dict[str, bool], tmp_path: Path) -> None:
    found = compare(learn(tmp_path / "target", **change), learn(tmp_path / "baseline"))
    assert found.verdict == "within", found.answer()


@pytest.mark.parametrize("beside", [{}, {"noise": True}, {"written_otherwise": True}], ids=str)
def test_a_network_that_is_its_own_target_is_another_function(beside: dict[str, bool], tmp_path: Path) -> None:
    target = learn(tmp_path / "target", target_of_itself=True, **beside)
    assert compare(target, learn(tmp_path / "baseline")).exit_code == 1
