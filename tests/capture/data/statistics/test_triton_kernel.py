"""The Triton kernels of statistics, run by Triton's interpreter and compiled for GPUs, in processes of their own.

Triton decides when it is imported whether it interprets, so this process must not import it.
"""

from __future__ import annotations

import inspect
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkout import ROOT


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int64), two.view(torch.int64))


def check_kernel() -> None:
    """Hold the kernel against the definition of each statistic. Runs in the child."""
    from aten_dump.capture.data.statistics import fused_launches
    from aten_dump.capture.data.statistics.fused_results import FusedResults
    from aten_dump.capture.data.statistics.one_tensor import compute
    from aten_dump.config import STATISTICS

    fused_launches.MOST_PROGRAMS = 4  # so that one program takes several blocks
    fused_launches.BLOCK = 128
    names = STATISTICS
    torch.manual_seed(0)
    specials = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0])
    tensors = [
        torch.randn(1),
        torch.randn(512),
        torch.randn(513).half(),
        torch.randn(2_000).bfloat16(),
        torch.randn(2_800),
    ]
    tensors += [specials, specials[1:], specials[3:], torch.full((500,), 1e30), torch.zeros(700)]
    tensors += [torch.cat([torch.ones(900), specials[:1]]), torch.full((300,), -2.5)]
    rows = torch.randn(3, 5, 7, 24)
    tensors += [rows[..., 5:17].transpose(1, 2), rows[:, 1:4].permute(3, 0, 2, 1), rows[..., ::3], rows[1, :, 2, 0]]
    tensors += [torch.randn(9, 1).expand(9, 500), torch.randn(300).expand(70, 300), torch.randn(512)[::2]]
    tensors += [torch.randn(200, 9)[:, 1:3].half(), torch.randn(50, 40).t()[3:], rows.permute(0, 3, 1, 2)]
    tensors += [torch.cat([specials, torch.randn(293)]).view(3, 100)[:, :90]]
    tensors += [torch.randn(900) * 1e-3 + 1000, torch.cat([torch.full((1,), 1e30), torch.randn(900)])]
    tensors += [torch.arange(900.0) + 1e6, torch.randn(900) * 1e-38, torch.randn(900) * 1e37]
    tensors += [torch.randint(-128, 128, (500,), dtype=torch.int8), torch.randint(256, (70, 31)).byte()[:, ::3]]
    tensors += [torch.rand(40, 99) > 0.3, torch.randint(-(2**15), 2**15, (513,), dtype=torch.int16)]
    results, few, launched = (
        FusedResults(tensors[0].device, some, 2 * len(tensors), 1 << 20) for some in (names, ("min", "mean"), names)
    )
    starts: dict[int, int] = {}
    for value, x in enumerate(tensors):
        before = starts[value] = results._used
        assert all(r.add(value, x, r is launched, False) for r in (results, few, launched))
        assert 1 <= results._used - before <= 4
    assert not results.add(0, torch.randn(3, 4, 5, 6)[::2, ::2, ::2, ::2], False, False), "too many dimensions"
    assert _same_bits(few._columns[:9, : few._used], results._columns[:9, : few._used])
    together = len(launched._waiting)
    assert 10 < together < len(tensors)
    launched.launch()
    order = [value for value, *_ in launched._values]
    assert sorted(order) == list(range(len(tensors))) and order[-together:] == sorted(order[-together:])
    for value, (start, _) in zip(order, launched._places, strict=True):
        alone = starts[value]
        programs = starts.get(value + 1, results._used) - alone
        assert _same_bits(launched._columns[:, start : start + programs], results._columns[:, alone : alone + programs])
    memory = results.together().numpy()
    for x, (_, found) in zip(tensors, results.statistics(memory), strict=True):
        for name, mine, alone in zip(names, found, compute(x, names), strict=True):
            assert type(mine) is type(alone), (name, x, mine, alone)
            near = 2e-6 * float(x.double().abs().mean()) if name == "mean" else 0.0
            same = mine == alone or (math.isnan(alone) and math.isnan(mine))
            same = same or math.isclose(mine, alone, rel_tol=1e-6, abs_tol=near)
            assert same, (name, x, mine, alone)


def check_that_gpus_can_have_them() -> None:
    """Compile the kernels as for elements that lie well and that do not. Runs in the child."""
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
    from triton import compile as compiled  # type: ignore[import-not-found,unused-ignore]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found,unused-ignore]

    from aten_dump.capture.data.statistics import fused_launches, triton_kernel

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        print("another compiler")
        return
    numbers = ("start", "width", "count", "blocks", "rows", "in_group", "rows_each", "values")
    strides = ("group_stride", "row_stride", "columns", "column_stride")
    constants = {"BLOCK": fused_launches.BLOCK, "ROWS": fused_launches._ROWS, "COLUMNS": fused_launches._COLUMNS}
    constants |= {"SIGNS": True, "PROGRAMS": 512, "column_stride": 1}  # as it is where it is 1
    kernels = triton_kernel.reduce_one, triton_kernel.reduce_rows, triton_kernel.reduce_each, triton_kernel.put_together
    cases = (("fp32", "i32", 16), ("bf16", "i64", 16), ("fp16", "i64", 1), ("fp32", "some i64", 1), ("u8", "i32", 16))
    for kernel in kernels:
        for dtype, integer, divisor in cases:
            constants["DTYPE"] = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16, "u8": tl.uint8}[dtype]
            types = {"elements": f"*{dtype}", "table": "*i64"} | dict.fromkeys(("parts", "result"), "*fp64")
            types |= dict.fromkeys((*numbers, *strides), integer[-3:])
            given = {name: constants[name] for name in kernel.arg_names if name in constants}
            if integer.startswith("some"):  # as Triton takes numbers by their size, and what is 1 as a constant
                types |= dict.fromkeys(("start", "width", "blocks", "rows_each", "in_group"), "i32")
                given |= {name: 1 for name in kernel.arg_names if name in ("columns", "row_stride")}
            signature = {name: "constexpr" if name in given else types[name] for name in kernel.arg_names}
            lying_well = {"elements", "table", "parts", "result", *strides} - {*given}
            aligned = [(i,) for i, n in enumerate(kernel.arg_names) if n in lying_well]
            attributes = dict.fromkeys(aligned, [["tt.divisibility", 16]] if divisor == 16 else [])
            source = ASTSource(fn=kernel, signature=signature, constexprs=given, attrs=attributes)
            for capability in (80, 90) if integer == "i32" else (90,):
                made = compiled(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
                assert made.asm["cubin"]
                if divisor == 16 and dtype != "u8" and "elements" in kernel.arg_names:
                    loads = r"ld\.global\S*\.v\d\.b32" if dtype == "fp32" else r"ld\.global\S*\.b32"
                    assert re.search(loads, made.asm["ptx"]), "loads are of an element each"
    print("compiled")


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="Triton has no wheels for this machine"
)
def test_the_kernels_compile_for_gpus(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", __spec__.name, "gpus"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    if done.stdout == "another compiler\n":
        pytest.skip("the compiler of this Triton takes other arguments")
    assert done.stdout == "compiled\n", done.stdout + done.stderr


if __name__ == "__main__":
    from tests.capture.data.statistics.triton_loop import counts

    if sys.argv[1:] == ["gpus"]:
        check_that_gpus_can_have_them()
    elif counts():
        check_kernel()
        print("same")
    else:
        print("no loops")
