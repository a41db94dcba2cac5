"""Runs the trial: python -m tests.trial [--sample N] [--seed S] [--program NAME] [--device npu] [word of a case's name ...]."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from tests import devices

from .cases import cases
from .examine import RIGHT, Baselines, examine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose text has all of these")
    parser.add_argument("--program", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--sample", type=int, default=1, help="one case in so many")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--json", type=Path, help="write what came of each case there, one line each")
    parser.add_argument(
        "--device", choices=devices.DEVICES, default="cpu", help="wrong kernels on it, and its own runs"
    )
    options = parser.parse_args()
    devices.start(options.device)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts: Counter[tuple[int, str, str]] = Counter()
    lines = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        baselines = Baselines(Path(folder))
        for case in cases(options.words, options.program, options.sample, options.seed, options.device):
            start = time.perf_counter()
            said = examine(case, Path(folder), baselines)
            seconds = time.perf_counter() - start
            counts[case.half, case.group, said.outcome] += 1
            sign = "ok  " if said.outcome in RIGHT else "    " if said.outcome == "no effect" else "MISS"
            print(f"{sign} {said.outcome:10} {case.group} {case} | {said.text} | {seconds:.1f}s", flush=True)
            lines.append(
                {"half": case.half, "group": case.group, "case": str(case), "outcome": said.outcome, "text": said.text}
            )
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for (half, group, outcome), count in sorted(counts.items()):
        print(f"half {half}, {group}: {outcome} {count}")
    print(f"{sum(counts.values())} cases in {time.perf_counter() - began:.0f} s")
    return int(any(outcome not in (*RIGHT, "no effect") for _, _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
