"""Examines all cases: python -m tests.analysis.held_out [part of a case's name ...]. Prints hits and misses."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from aten_dump import AtenDumpError

from .bugs import cases as bugs
from .examine import examine
from .honest import cases as honest


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    missed = count = 0
    with tempfile.TemporaryDirectory() as place:
        bases: dict[str, Path] = {}
        for number, case in enumerate([*honest(), *bugs()]):
            text = f"{'bug' if case.guilty else 'honest'} {case}"
            if not all(word in text for word in words):
                continue
            folder = Path(place) / str(number)
            folder.mkdir()
            began = time.perf_counter()
            try:
                said = examine(case, folder, bases)
                right, answer = said.right, said.text
            except (AtenDumpError, RuntimeError, ValueError) as error:
                right, answer = False, repr(error)
            count, missed = count + 1, missed + (not right)
            seconds = time.perf_counter() - began
            print("hit " if right else "MISS", text, "|", answer, "|", case.guilty, f"{seconds:.1f}s", flush=True)
            shutil.rmtree(folder / "target", ignore_errors=True)
    print(f"{count - missed} of {count} cases right")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
