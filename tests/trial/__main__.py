"""Runs the trial: python -m tests.trial [--sample N] [--seed S] [--program NAME] [--device npu] [--ranks] [word of a case's name ...]."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from tests import devices

from .cases import cases
from .examine import RIGHT, Baselines, Said, examine
from .ranks import NAMES, run_cases

ASIDE = (
    "no effect",
    "incomparable",
)  # neither right nor wrong: nothing was to be found, or docs/layouts.md says that it cannot be
Result = tuple[str, str, str, Said]  # half, group, the case's text, what came of it


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
    parser.add_argument(
        "--ranks", action="store_true", help="only programs on two ranks; without any option they come last"
    )
    options = parser.parse_args()
    devices.start(options.device)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts: Counter[tuple[str, str, str]] = Counter()
    lines = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for half, group, case, said in results(options, Path(folder)):
            seconds, start = time.perf_counter() - start, time.perf_counter()
            counts[half, group, said.outcome] += 1
            sign = "ok  " if said.outcome in RIGHT else "    " if said.outcome in ASIDE else "MISS"
            print(f"{sign} {said.outcome:10} {group} {case} | {said.text} | {seconds:.1f}s", flush=True)
            lines.append({"half": half, "group": group, "case": case, "outcome": said.outcome, "text": said.text})
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for (half, group, outcome), count in sorted(counts.items()):
        print(f"{half}, {group}: {outcome} {count}")
    print(f"{sum(counts.values())} cases in {time.perf_counter() - began:.0f} s")
    return int(any(outcome not in (*RIGHT, *ASIDE) for _, _, outcome in counts))


def results(options: argparse.Namespace, folder: Path) -> Iterator[Result]:
    """Yield what came of the cases that were asked for."""
    baselines = Baselines(folder)
    if not options.ranks:
        for case in cases(options.words, options.program, options.sample, options.seed, options.device):
            yield f"half {case.half}", case.group, str(case), examine(case, folder, baselines)
    if options.ranks or not (options.words or options.program or options.sample > 1 or options.device != "cpu"):
        for one, said in run_cases(options.program or NAMES, options.words, folder):
            yield "two ranks", one.group, str(one), said


if __name__ == "__main__":
    sys.exit(main())
