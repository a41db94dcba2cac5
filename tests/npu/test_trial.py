"""Wrong kernels on the device, as `make trial` puts them: a few of those of ``python -m tests.trial --device npu``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trial.cases import DRAW_THERE, Case, cases
from tests.trial.examine import Baselines, examine


@pytest.mark.parametrize(
    "case",
    [
        Case("ppo", "kernel", "sign", "kernel", 1, "addmm", target="npu"),
        Case("target network", "kernel", "in bfloat16", "kernel", 0, "relu", target="npu", baseline="npu"),
        Case("target network", "kernel", "an element doubled", "kernel", 0, "npu_gather_backward", target="npu"),
    ],
    ids=str,
)
def test_a_wrong_kernel_is_named_by_compare_and_by_replay(case: Case, tmp_path: Path) -> None:
    said = examine(case, tmp_path, Baselines(tmp_path))
    assert said.outcome == "call" and f"replay: {'NPU' if 'npu' in case.op else 'Aten'}.{case.op}" in said.text, said


def test_the_device_itself_is_honest(tmp_path: Path) -> None:
    said = examine(Case("point set", "honest", "other device", "device", target="npu"), tmp_path, Baselines(tmp_path))
    assert said.outcome == "agrees", said.text


def test_programs_that_draw_on_the_device_are_not_held_against_the_cpu() -> None:
    for name in ("vae", "ppo"):
        against = {case.baseline for case in cases(programs=[name], device="npu")}
        assert against == ({"npu"} if name in DRAW_THERE else {"npu", "cpu"})
