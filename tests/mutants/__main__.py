"""Changes one place of the package at a time and asks whether a test notices: ``make mutants``, docs/testing.md.

pyproject.toml, [tool.aten-dump.mutants], says how many places are drawn and which tests decide.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from difflib import unified_diff
from hashlib import sha256
from importlib import import_module
from typing import Any

from tests.checkout import ROOT
from tests.mutants.drawing import Mutant, draw, original_source
from tests.mutants.reach import Reach
from tests.mutants.statements import Whereabouts, whereabouts
from tests.mutants.trials import WarmTrials, cold_trial, pytest_in
from tests.mutants.watching import Ending, in_fork, void

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COPY, RESULTS = ROOT / "build" / "mutants", ROOT / "build" / "mutants.jsonl"
REACH = ROOT / "build" / "mutants-reach"
COPIED = ("aten_dump", "tests", "docs", "examples", "benchmarks", "README.md", "hatch_build.py", "pyproject.toml")
WARM = ("numpy", "torch", "torch._dynamo", "torch.utils.checkpoint", "msgpack", "safetensors.torch", "xxhash")


class Folder:
    """One folder of the package: its mutants, and the tests that decide on them."""

    def __init__(self, name: str, settings: dict[str, Any], seed: int) -> None:
        part = settings["folders"][name]
        self.name, self.tests, self.most_seconds = (
            name,
            tuple(part["tests"]),
            part.get("most_seconds", settings["most_seconds"]),
        )
        self.mutants = draw(name, part["places"], seed, [*settings["left_out"], *part.get("left_out", [])])
        self.reach, self.trusted = Reach(), set[str]()

    def to_try(self) -> list[Mutant]:
        """Return the mutants that no test has killed yet."""
        outcomes = {key: result["outcome"] for key, result in results().items()}
        return [mutant for mutant in self.mutants if outcomes.get(key(mutant)) not in ("killed", "endless")]

    def measure(self, trials: WarmTrials) -> None:
        """Find which tests execute which lines; what is known of a file of tests is not measured again."""
        sources = [file.read_bytes() for file in sorted((COPY / "aten_dump" / self.name).rglob("*.py"))]
        tests = [item.nodeid for item in trials.items if item.nodeid.startswith(self.tests)]
        self.reach = Reach(on_import=trials.on_import)
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            digest = sha256(b"".join([(COPY / file).read_bytes(), *sources])).hexdigest()
            target = REACH / f"{self.name.replace('/', '-')}-{file.replace('/', '-')}-{digest[:16]}.json"
            if not target.exists():
                trials.measure([test for test in tests if test.startswith(f"{file}::")], target)
            seconds, lines = json.loads(target.read_text(encoding="utf-8"))
            self.reach.seconds.update(seconds)
            self.reach.lines.update(lines)
        print(f"{self.name}: {len(tests)} tests, {sum(self.reach.seconds.values()):.0f} s", flush=True)

    def try_warm(self, trials: WarmTrials) -> list[Mutant]:
        """Try the mutants whose code can be exchanged; return the others."""
        left = []
        for mutant in self.to_try():
            place, order = self.plan(mutant)
            function = None if self.reach.runs_on_import(mutant.path, place) else place.function
            if not order:
                note(self.name, mutant, "unreached", "", 0.0)
            elif function is None or not self.is_tried(
                mutant,
                lambda order, path=mutant.path, function=function: trials.changed(
                    path, function, order, self.reach.seconds
                ),
                lambda test: trials.unchanged(test, self.reach.seconds),
            ):
                left.append(mutant)
        return left

    def try_cold(self, mutant: Mutant, options: list[str]) -> None:
        def run(order: list[str]) -> Ending:
            return cold_trial(COPY, options, order, self.reach.seconds)

        self.is_tried(mutant, run, lambda test: run([test]))

    def is_tried(
        self, mutant: Mutant, changed: Callable[[list[str]], Ending | None], unchanged: Callable[[str], Ending]
    ) -> bool:
        """Try a mutant until it survives, or is killed by a test that passes without it; tell whether it could be."""
        while True:
            with Changed(mutant):
                ending = changed(self.plan(mutant)[1])
            if ending is None:
                return False
            outcome, test = outcome_of(ending)
            if outcome == "survived" or test not in self.reach.seconds or self.is_trusted(test, unchanged):
                note(self.name, mutant, outcome, test, ending.cpu_seconds)
                return True

    def is_trusted(self, test: str, unchanged: Callable[[str], Ending]) -> bool:
        """Return True if a test passes without a mutant; one that does not is left out from now on."""
        if test not in self.trusted:
            if outcome_of(unchanged(test))[0] != "survived":
                print(f"{self.name}: fails without a mutant, is left out: {test}", flush=True)
                del self.reach.seconds[test]
                return False
            self.trusted.add(test)
        return True

    def plan(self, mutant: Mutant) -> tuple[Whereabouts, list[str]]:
        place = whereabouts(original_source(mutant.path), mutant.line, mutant.column)
        return place, self.reach.order(mutant.path, place, self.most_seconds)


def outcome_of(ending: Ending) -> tuple[str, str]:
    """Return how a trial ended, and the test that decided."""
    if not ending.endless and "failed" not in ending.said and not ending.status:
        return "survived", ""
    test = (ending.said.get("failed") or ending.said.get("test") or ["import"])[-1]
    return "endless" if ending.endless else "killed", test


class Changed:
    """Keeps a mutant in the copy of the checkout, where programs that tests start find it too."""

    def __init__(self, mutant: Mutant) -> None:
        self.target, self.source, self.original = COPY / mutant.path, mutant.source(), original_source(mutant.path)

    def __enter__(self) -> None:
        self.write(self.source)

    def __exit__(self, *_: object) -> None:
        self.write(self.original)

    def write(self, source: str) -> None:
        """Write a source with a time of its own: compiled modules are kept by whole seconds and size."""
        later = int(self.target.stat().st_mtime) + 2
        self.target.write_text(source, encoding="utf-8")
        os.utime(self.target, (later, later))


def note(folder: str, mutant: Mutant, outcome: str, test: str, cpu_seconds: float) -> None:
    """Append an outcome to the results, and print a mutant that survives."""
    change = list(
        unified_diff(original_source(mutant.path).splitlines(), mutant.source().splitlines(), n=0, lineterm="")
    )[3:]
    result = {"folder": folder, **mutant._asdict(), "outcome": outcome, "test": test, "change": change}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**result, "cpu_seconds": cpu_seconds, "key": key(mutant)}) + "\n")
    if outcome in ("survived", "unreached"):
        print(f"{mutant.path}:{mutant.line} {mutant.operator} {outcome}", *change, sep="\n    ", flush=True)


@functools.cache
def key(mutant: Mutant) -> str:
    """Name a mutant and what its file says, so that an outcome is not taken for that of another file."""
    return sha256(f"{mutant.path} {mutant.source()}".encode()).hexdigest()


def results() -> dict[str, dict[str, Any]]:
    """Return the last outcome of each mutant."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {result["key"]: result for result in map(json.loads, lines)}


def copy_checkout() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, COPY)
    REACH.mkdir(exist_ok=True)


def run(folders: list[Folder], settings: dict[str, Any]) -> None:
    """Try first what needs no import, all of it in forks of one process that has collected the tests."""
    options = [option for test in settings["deselect"] for option in ("--deselect", test)]

    def warm(trials: WarmTrials) -> None:
        for folder in folders:
            folder.measure(trials)
            left = folder.try_warm(trials)
            state = [asdict(folder.reach), sorted(folder.trusted), [mutant._asdict() for mutant in left]]
            (REACH / f"{folder.name.replace('/', '-')}.left").write_text(json.dumps(state), encoding="utf-8")

    tests = sorted({test for folder in folders for test in folder.tests})
    in_fork(lambda _: void(pytest_in(COPY, tests, options, WarmTrials(COPY, warm))), COPY, lambda _: 1e9, logs=False)
    for folder in folders:
        file = REACH / f"{folder.name.replace('/', '-')}.left"
        reach, _, left = json.loads(file.read_text(encoding="utf-8"))
        folder.reach = Reach(**reach)
        for mutant in left:
            folder.try_cold(Mutant(**mutant), options)


def main() -> None:
    """Draw, run, print those that survive, and count."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["aten-dump"]["mutants"]
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=list(settings["folders"]), help="folders of the package")
    parser.add_argument("--seed", type=int, default=settings["seed"])
    parser.add_argument("--continue", action="store_true", dest="again", help="try only those that no test has killed")
    chosen = parser.parse_args()
    if not chosen.again:
        RESULTS.unlink(missing_ok=True)
    copy_checkout()
    for name in WARM:
        import_module(name)
    folders = [Folder(name, settings, chosen.seed) for name in chosen.folders]
    run([folder for folder in folders if folder.to_try()], settings)
    outcomes = results()
    for folder in folders:
        counts = Counter(str(outcomes[key(mutant)]["outcome"]) for mutant in folder.mutants)
        print(f"{folder.name}: {len(folder.mutants)} mutants, {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
