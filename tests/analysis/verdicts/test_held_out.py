"""A sample of the held-out programs and bugs; all of them: python -m tests.analysis.held_out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.held_out.bugs import cases as bugs
from tests.analysis.held_out.examine import Case, examine
from tests.analysis.held_out.honest import cases as honest
from tests.sampling import slow_but_for

SAMPLE = {
    "resnet bf16: halves kernels",
    "resnet fp32: for loop over parameters",
    "vit fp16: sdpa attention",
    "llama fp32: fused norm",
    "llama fp32: gate without a function",
    "resnet bf16: not nesterov",
    "resnet bf16: weight x1.001",
    "resnet bf16: stale statistics of a kernel",
    "vit fp16: gradients not unscaled",
    "vit fp16: kernel convolution 0 change [1.005, 0]",
    "llama fp32: scale x1.02, fused against eager (split)",
    "llama fp32: gate's backward x1.01 (split)",
}
# What looks least like a difference; fused attention against its parts: test_injected_bugs.py.
QUICK = {
    "resnet bf16: weight x1.001",
    "resnet bf16: stale statistics of a kernel",
}
CASES = [case for case in (*honest(), *bugs()) if str(case) in SAMPLE]


def test_the_sample_is_there() -> None:
    assert {str(case) for case in CASES} == SAMPLE


@pytest.mark.parametrize("case", slow_but_for([case for case in CASES if str(case) in QUICK], CASES), ids=str)
def test_the_guilty_call_is_named_and_no_other(case: Case, tmp_path: Path) -> None:
    said = examine(case, tmp_path, {})
    assert said.right, f"{said.text}; guilty is {case.guilty or 'nobody'}"
