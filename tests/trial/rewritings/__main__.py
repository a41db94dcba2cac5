"""Runs this trial: python -m tests.trial.rewritings [word of a case's name ...] [--sample N] [--seed S] [--json FILE]."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from .examine import RIGHT, Case, Said, cases_of, examine
from .running import Program, load


def main(trial: str, programs: Mapping[str, Program], cases: Iterable[Case]) -> int:
    """Run the cases of a trial that the command line asks for; return its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {trial}")
    parser.add_argument("words", nargs="*", help="only cases whose text has all of these")
    parser.add_argument(
        "--without", action="append", default=[], help="no case whose text has this word; may be given several times"
    )
    parser.add_argument("--sample", type=int, help="so many cases, drawn")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--json", type=Path, help="write what came of each case there, one line each")
    parser.add_argument("--failures", type=Path, help="add what came out wrong there, with the command that runs it")
    parser.add_argument("--whole", action="store_true", help="print whole answers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [case for case in cases if _wanted(case, options)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            said = examine(case, programs[case.program], Path(folder))
            counts["bug" if case.bug else "honest", said.outcome] += 1
            print(
                f"{said.outcome:10} {case} | {said.text} | compare {said.compared:.1f} s, recording {said.recorded:.1f} s",
                flush=True,
            )
            if options.whole:
                print(said.answer)
            _write(options, f"{trial} '{case};'", said)
    for (group, outcome), count in sorted(counts.items()):
        print(f"{group:8}{outcome:12}{count}")
    return int(any(outcome not in RIGHT for _, outcome in counts))


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    text = f"{case};"
    return all(word in text for word in options.words) and not any(word in text for word in options.without)


def _write(options: argparse.Namespace, case: str, said: Said) -> None:
    """Write what came of a case, named by the words that run it."""
    if options.json is not None:
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": case, **vars(said)}) + "\n")
    if options.failures is not None and said.outcome not in (*RIGHT, "not honest"):
        with options.failures.open("a", encoding="utf-8") as file:
            first = "\n    ".join(
                said.answer.splitlines()[-3:] if said.outcome == "crash" else said.answer.splitlines()[:3]
            )
            file.write(f"{said.outcome}: {case}\n    {first}\n    .venv/bin/python -m {case} --whole\n\n")


if __name__ == "__main__":
    PROGRAMS = load()
    sys.exit(main("tests.trial.rewritings", PROGRAMS, [case for one in PROGRAMS.values() for case in cases_of(one)]))
