"""The cases on two ranks: how many, and what is said of one program's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.trial.pipelines import PIPELINES
from tests.trial.ranked_training import DIVIDED, _pairs_of_layers, prepared, taking
from tests.trial.ranks import NAMES, cases_of, run_cases


def test_there_are_honest_pairs_of_each_layout() -> None:
    honest = [case for name in NAMES for case in cases_of(name) if case.group == "honest"]
    assert len(honest) >= 60 and {case.layout for case in honest} == {"ddp", "fsdp", "tp", "gpipe", "1f1b"}
    asked = {(case.run, case.against) for name in DIVIDED for case in cases_of(name)}
    assert len(asked) == 8, "each bug is asked of both baselines"


def test_a_divided_program_takes_the_mean_of_its_halves() -> None:
    training = prepared("adapters")
    halves = [{key: taking("ddp", part, False)(t) for key, t in training.batches[0].items()} for part in (0, 1)]
    losses = [training.loss(training.model, batch) for batch in (*halves, training.batches[0])]
    torch.testing.assert_close((losses[0] + losses[1]) / 2, losses[2])


def test_pairs_of_layers_have_only_an_elementwise_op_between_them() -> None:
    apart = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    assert list(_pairs_of_layers(apart)) == [("0", "2")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_said_of_a_pipeline(tmp_path: Path) -> None:
    assert "transformer" in PIPELINES
    found = {(case.run, case.against): said for case, said in run_cases(["transformer"], ["gpipe"], tmp_path)}
    outcomes = {case: said.outcome for case, said in found.items()}
    assert outcomes == {
        ("b", "itself"): "agrees",
        ("b", "one process"): "agrees",
        ("kernel", "itself"): "call",
        ("gradients", "itself"): "call",
        ("data", "itself"): "call",
    }, {case: said.text for case, said in found.items()}
