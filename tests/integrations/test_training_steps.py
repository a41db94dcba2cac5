"""Events of a trainer become steps; evaluation is in none of them unless asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.integrations.training_steps import TrainingSteps


@pytest.mark.parametrize("evaluation", [False, True])
def test_batches_make_steps_and_what_runs_between_is_left_out(tmp_path: Path, evaluation: bool) -> None:
    steps, model = TrainingSteps(DumpConfig(tmp_path / "dump"), evaluation), nn.Linear(2, 1)
    steps.begin_batch()  # before it starts: nothing
    steps.start(model)
    torch.ones(1).sin()
    for at in range(4):
        steps.begin_batch()
        model(torch.ones(1, 2))
        steps.end_batch(ends_step=at % 2 == 1)
        torch.ones(1).cos()
    assert steps.dump is DumpMode.current() is not None
    steps.close()
    steps.close()
    assert DumpMode.current() is None
    dump = open_dump(tmp_path / "dump")
    assert dump.steps[:2] == [0, 1]
    for step in (0, 1):
        rank = dump.step(step).rank(0)
        assert len(rank.module("").calls) == 2
        assert ("Aten.cos.0.forward" in rank) == evaluation
    assert ("Aten.sin.0.forward" in dump.step(0).rank(0)) == evaluation
