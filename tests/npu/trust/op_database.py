"""Every op of PyTorch's op_db on the device and on the CPU: python -m tests.npu.trust.op_database [--part i/n] [--every K].

Importing op_db changes torch's global flags: this runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.npu.simulator import device
from tests.npu.trust.differences import FIRST_RESULT_ONLY, NO_OUT, NOT_COMPARED, REFUSED
from tests.sweep.samples import full_name, moved, samples_of, seed_all

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def difference(expected: Any, found: Any) -> str | None:
    """What differs between results of the CPU and of the device."""
    pairs = tensors(expected), tensors(found)
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[1])} tensors, expected {len(pairs[0])}"
    for x, y in zip(*pairs, strict=True):
        half = x.dtype in (torch.float16, torch.bfloat16)
        scale = float(x.detach().float().nan_to_num(0, 0, 0).abs().max()) if half and x.numel() else 1.0
        within = {"rtol": 4e-2, "atol": 2e-2 * max(scale, 1)} if half else {"rtol": 1e-4, "atol": 1e-4}
        if not (x.dtype.is_floating_point or x.dtype.is_complex):
            within = {"rtol": 0, "atol": 0}
        try:
            torch.testing.assert_close(y.detach().cpu(), x.detach(), equal_nan=True, **within)
        except AssertionError as error:
            return str(error).replace("\n", " ")[:200]
    return None


def gradients(inputs: Any, result: Any, seeds: list[Tensor]) -> list[Tensor | None]:
    wanted = [t for t in tensors(inputs) if t.requires_grad]
    ends = [t for t in tensors(result) if t.requires_grad]
    return list(torch.autograd.grad(ends, wanted, seeds, allow_unused=True)) if ends else []


def of_sample(op: Any, sample: Any, call: Callable[..., Any]) -> str | None:
    """Run one sample on both; returns what differs."""
    given = (sample.input, sample.args, sample.kwargs)
    there = moved(given, "npu")
    seed_all()
    try:
        expected = call(given[0], *given[1], **given[2])
    except Exception:
        return None  # the CPU does not have it
    seed_all()
    found = call(there[0], *there[1], **there[2])
    if op.name in NOT_COMPARED:
        return None
    if op.name in FIRST_RESULT_ONLY:
        expected, found = expected[0], found[0]
    problem = difference(expected, found)
    if problem or not any(t.requires_grad for t in tensors(expected)):
        return problem
    seeds = [torch.randn_like(t) for t in tensors(expected) if t.requires_grad]
    try:
        want = gradients(given, expected, seeds)
    except RuntimeError:
        return None
    have = gradients(there, found, [x.to("npu") for x in seeds])
    both = [(a, b) for a, b in zip(want, have, strict=True) if a is not None and b is not None]
    problem = difference([a for a, _ in both], [b for _, b in both])
    return problem and f"gradients: {problem}"


def out_of_sample(op: Any, sample: Any) -> str | None:
    """``out=`` and the in-place variant on the device, against the result of the CPU."""
    given = pytree.tree_map(
        lambda x: x.detach() if isinstance(x, Tensor) else x, (sample.input, sample.args, sample.kwargs)
    )
    try:
        expected = op.op(given[0], *given[1], **given[2])
    except Exception:
        return None
    if op.supports_out and op.name not in NO_OUT and isinstance(expected, Tensor):
        there, out = moved(given, "npu"), torch.empty_like(expected, device="npu")
        op.op(there[0], *there[1], **there[2], out=out)
        problem = difference(expected, out)
        if problem:
            return f"out=: {problem}"
    in_place = op.inplace_variant
    if in_place and isinstance(given[0], Tensor) and isinstance(expected, Tensor):
        there = moved(given, "npu")
        try:
            wanted = in_place(given[0].clone(), *given[1], **given[2])
        except RuntimeError:
            return None
        in_place(there[0], *there[1], **there[2])
        problem = difference(wanted, there[0])
        return problem and f"in place: {problem}"
    return None


def sweep_op(op: Any, limit: int, counts: Counter[str]) -> list[str]:
    name = full_name(op)
    problems = []
    for dtype in DTYPES:
        if dtype not in op.dtypes or name in REFUSED:
            continue
        for number, sample in enumerate(samples_of(op, dtype, limit)):
            counts["samples"] += 1
            try:
                found = of_sample(op, sample, op.op)
                found = found or (None if op.name in NOT_COMPARED else out_of_sample(op, sample))
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
            if found:
                problems.append(f"{name}[{dtype}]#{number}: {found}")
    counts["ops"] += 1
    return problems


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--every", type=int, default=1, help="a sample: one op in so many")
    parser.add_argument("--limit", type=int, default=6, help="samples per op and dtype at most")
    parser.add_argument("--ops", nargs="*", help="only these names")
    options = parser.parse_args()
    device.start()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    part, parts = map(int, options.part.split("/"))
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for op in op_db[:: options.every][part::parts]:
        if options.ops is None or op.name in options.ops:
            problems += sweep_op(op, options.limit, counts)
    print(*problems, sep="\n")
    print(f"{dict(counts)}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # How an interpreter ends is not what is asked here: one aborted there when all was said, for a reason that was not found.
    os._exit(status)
