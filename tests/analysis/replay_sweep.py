"""Records op_db, forward and backward, and replays every aten op: python -m tests.analysis.replay_sweep [name ...].

Importing op_db changes torch's global flags: it runs in a process of its own. Prints a JSON report.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from tests.sweep.samples import DTYPES, run, samples_of

GROUP = 40  # entries to a step, so that a dump is not made for each


def sweep(names: list[str], dtypes: list[str], limit: int) -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    unequal: dict[str, str] = {}
    suspects: dict[str, str] = {}
    chosen = [op for op in op_db if not names or op.name in names]
    for start in range(0, len(chosen), GROUP):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "d"
            samples = [(op, s) for op in chosen[start : start + GROUP] for s in _samples(op, dtypes, limit)]
            with DumpMode(DumpConfig(path=str(place), data="tensor", level="aten", stacks=False)) as dump:
                for op, sample in samples:
                    run(op, sample)
                dump.step()
            counts["entries"] += len({id(op) for op, _ in samples})
            counts["samples"] += len(samples)
            rank = open_dump(place).step(0).rank(0)
            native, judged = replay(rank, dtype=None), replay(rank)
            counts["ops"] += len(native.ops)
            counts["bit-equal"] += sum(op.bit_equal for op in native.ops)
            counts["float64"] += sum(op.reference == "float64" for op in judged.ops)
            counts["skipped"] += len(native.skipped)
            reasons.update(f"{s.op}: {s.reason}" for s in native.skipped)
            for op in native.unequal:
                unequal[op.op] = f"{op.name} {op.worst.slot} {op.worst.error:.3g}"
            for op in judged.suspects:
                suspects[op.op] = f"{op.name} {op.worst}"
    return {"counts": dict(counts), "reasons": dict(reasons), "unequal": unequal, "suspects": suspects}


def _samples(op: Any, dtypes: list[str], limit: int) -> list[Any]:
    found = []
    for name in dtypes:
        if op.supports_dtype(DTYPES[name], "cpu"):
            found += itertools.islice(samples_of(op, DTYPES[name], limit), limit)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    print(json.dumps(sweep(options.get("names", []), options.get("dtypes", ["float32"]), options.get("limit", 1))))
