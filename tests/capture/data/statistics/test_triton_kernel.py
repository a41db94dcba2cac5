"""The Triton kernel of statistics, run by Triton's interpreter on the CPU, in a process of its own.

Triton decides when it is imported whether it interprets, so this process must not import it.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys

import pytest
import torch

from tests.checkout import ROOT


def check_kernel() -> None:
    """Hold the kernel against the definition of each statistic. Runs in the child."""
    from aten_dump.capture.data.statistics import on_device, triton_kernel
    from aten_dump.capture.data.statistics.one_tensor import compute
    from aten_dump.config import STATISTICS

    triton_kernel.MOST_PROGRAMS = 3  # so that one program takes several blocks
    names = tuple(name for name in STATISTICS if name != "std")
    torch.manual_seed(0)
    specials = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0])
    tensors = [
        torch.randn(1),
        torch.randn(2048),
        torch.randn(2049).half(),
        torch.randn(20_000).bfloat16(),
        torch.randn(28_000),
    ]
    tensors += [specials, specials[1:], specials[3:], torch.full((5000,), 1e30), torch.zeros(7000)]
    tensors += [torch.cat([torch.ones(9000), specials[:1]]), torch.full((3000,), -2.5)]
    for x in tensors:
        reduced = on_device.reduce_fused(x)
        columns = reduced["fused"].shape
        assert columns[0] == len(triton_kernel.RESULTS) and 1 <= columns[1] <= 3, columns
        arrays = {key: value.reshape(-1).numpy() for key, value in reduced.items()}
        found = on_device.finish([x.numel()], arrays, names)
        for name, mine, alone in zip(names, found, compute(x, names), strict=True):
            near = 2e-6 * float(x.double().abs().mean()) if name == "mean" else 0.0
            same = mine == alone or (math.isnan(alone) and math.isnan(mine))
            same = same or math.isclose(mine, alone, rel_tol=1e-6, abs_tol=near)
            assert same, (name, x, mine, alone)


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="Triton has no wheels for this machine"
)
def test_the_kernel_agrees_with_the_definition() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", __spec__.name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    if done.stdout == "no loops\n":
        pytest.skip("the interpreter of this Triton runs no loop with this numpy")
    assert done.stdout == "same\n", done.stderr


if __name__ == "__main__":
    from tests.capture.data.statistics.triton_loop import counts

    if counts():
        check_kernel()
        print("same")
    else:
        print("no loops")
