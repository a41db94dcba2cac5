"""Changes one place of the package at a time and asks whether a test notices: ``make mutants``, docs/testing.md.

One process imports torch and forks for each mutant, which lies in a copy of the checkout, so that programs that tests
start find it too. pyproject.toml, [tool.aten-dump.mutants], says how many places are drawn and which tests decide.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from contextlib import suppress
from difflib import unified_diff
from importlib import import_module
from pathlib import Path

from tests.checkout import ROOT
from tests.mutants.drawing import Mutant, draw
from tests.structure import imported_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COPY, RESULTS = ROOT / "build" / "mutants", ROOT / "build" / "mutants.jsonl"
COPIED = ("aten_dump", "tests", "docs", "examples", "benchmarks", "README.md", "hatch_build.py", "pyproject.toml")
WARM = ("numpy", "torch", "torch._dynamo", "torch.utils.checkpoint", "pytest", "msgpack", "safetensors.torch", "xxhash")
OPTIONS = ("-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore")


def tests_for(path: str, folders: list[str]) -> list[list[str]]:
    """Return the test files of some folders: those that import the module of `path`, and the others."""
    module = path.removesuffix(".py").replace("/", ".")
    parts: list[list[str]] = [[], []]
    for file in [file for folder in folders for file in sorted((ROOT / folder).rglob("test_*.py")) or [ROOT / folder]]:
        names = imported_names(ast.parse(file.read_text(encoding="utf-8")), file, ROOT / "tests")
        imports = any(f"{name}.".startswith(f"{module}.") for name in names)
        parts[not imports].append(file.relative_to(ROOT).as_posix())
    return [part for part in parts if part]


def run_tests(tests: list[str], options: list[str], seconds: float) -> tuple[str, str]:
    """Run tests on the copy, in a fork; return how that ended and the first test that failed."""
    log = COPY / "log"
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.chdir(COPY)
        sys.path.insert(0, str(COPY))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(COPY), os.environ.get("PYTHONPATH", "")])
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "aten_dump")]:
            del sys.modules[name]  # the copy's are another
        import pytest

        os._exit(int(pytest.main([*OPTIONS, *options, *tests])))
    status, deadline = None, time.monotonic() + seconds
    while status is None and time.monotonic() < deadline:
        time.sleep(0.05)
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what the tests started
    if status is None:
        os.waitpid(child, 0)
        return "timeout", ""
    failed = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("killed" if status else "survived"), " ".join(failed[:1])


def run_mutant(mutant: Mutant, tests: list[list[str]], options: list[str], seconds: float) -> dict[str, object]:
    """Put a mutant into the copy, run the tests until one fails, and take it out again."""
    target, source = COPY / mutant.path, mutant.source()
    original = target.read_text(encoding="utf-8")
    assert source is not None, mutant
    write(target, source)
    outcome = test = ""
    for part in tests:
        outcome, test = run_tests(part, options, seconds)
        if outcome != "survived":
            break
    write(target, original)
    changed = list(unified_diff(original.splitlines(), source.splitlines(), n=0, lineterm=""))[3:]
    return {**mutant._asdict(), "outcome": outcome, "test": test, "change": changed}


def write(target: Path, source: str) -> None:
    """Write a source with a time of its own: compiled modules are kept by whole seconds and size."""
    target.write_text(source, encoding="utf-8")
    WRITTEN.append(WRITTEN[-1] + 2)
    os.utime(target, (WRITTEN[-1], WRITTEN[-1]))


WRITTEN = [int(time.time())]


def main() -> None:
    """Draw, run, print those that survive, and count."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["aten-dump"]["mutants"]
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=list(settings["folders"]), help="folders of the package")
    parser.add_argument("--seed", type=int, default=settings["seed"])
    parser.add_argument("--file", help="only mutants of files whose path holds this")
    chosen = parser.parse_args()
    shutil.rmtree(COPY, ignore_errors=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, COPY)
    for name in WARM:
        import_module(name)
    for folder in chosen.folders:
        part, counts = settings["folders"][folder], Counter[str]()
        mutants = [
            m for m in draw(folder, part["places"], chosen.seed, settings["left_out"]) if (chosen.file or "") in m.path
        ]
        options = [option for test in part.get("deselect", []) for option in ("--deselect", test)]
        (tests,) = tests_for("", part["tests"])
        outcome, test = run_tests(tests, options, 10 * settings["seconds"])
        assert outcome == "survived", f"{folder}: the tests fail without a mutant, {outcome}: {test}"
        for mutant in mutants:
            result = run_mutant(mutant, tests_for(mutant.path, part["tests"]), options, settings["seconds"])
            counts[str(result["outcome"])] += 1
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"folder": folder, **result}) + "\n")
            if result["outcome"] == "survived":
                print(f"{mutant.path}:{mutant.line} {mutant.operator}", *result["change"], sep="\n    ", flush=True)
        print(f"{folder}: {len(mutants)} mutants, {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
