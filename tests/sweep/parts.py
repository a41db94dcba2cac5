"""One part of a sweep; a module of its own, so that a worker process can import it."""

from __future__ import annotations

import argparse
import time
import warnings
import zlib
from typing import Any

import torch

from tests import devices

from .exclusions import EXCLUDED, SPECIAL, UNDETERMINED, UNDETERMINED_ON_CUDA
from .runner import Report, Settings, sweep_op
from .samples import full_name


def chosen(every: int, special: bool) -> list[Any]:
    """The entries of op_db in a sample of one in `every`, by a hash that stays; with `special`, those known to be so."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if full_name(op) not in EXCLUDED
        and (zlib.crc32(full_name(op).encode()) % every == 0 or (special and op.name in SPECIAL))
    ]


def run_part(options: argparse.Namespace, part: str) -> Report:
    """Sweep over one part of the ops."""
    torch.set_num_threads(1)
    devices.start(options.device)
    if options.device == "cuda":
        UNDETERMINED.update(UNDETERMINED_ON_CUDA)
    warnings.simplefilter("ignore")
    settings = Settings(options.limit, options.device, options.data, options.level)
    number, parts = map(int, part.split("/"))
    if options.ops:
        ops = [op for op in chosen(1, True) if op.name in options.ops or full_name(op) in options.ops]
    else:
        ops = chosen(options.every, special=True)
    total = Report()
    for op in ops[number::parts]:
        start = time.perf_counter()
        report = sweep_op(op, settings)
        total.add(report)
        if options.verbose:
            print(
                f"{full_name(op)}: {report.counts['samples']} samples, {time.perf_counter() - start:.2f} s", flush=True
            )
        for problem in report.problems[:3]:
            print(f"PROBLEM {problem[:2000]}", flush=True)
    return total
