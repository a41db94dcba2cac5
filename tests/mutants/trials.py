"""Tries mutants: runs the tests that may notice one, in a fork that has all else imported already.

A change inside a function is put into the functions that the tests have imported, by exchanging their code; this takes
milliseconds. What runs on import is imported anew, from the changed file, which takes seconds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.reach import Lines, ReachPlugin, coverage_of, lines_of
from tests.mutants.statements import Function
from tests.mutants.watching import Ending, Say, in_fork

OPTIONS = ("-q", "-s", "--tb=no", "--timeout=0", "-p", "no:cacheprovider", "-W", "ignore")
FLOOR_SECONDS, TIMES, IMPORT_SECONDS = 10.0, 5.0, 20.0  # a test may take so many times as long as without a mutant

Functions = dict[tuple[str, int, str], list[FunctionType]]


class OneTrial:
    """Runs some tests in the order given, until one fails, and tells which one runs and which fails."""

    def __init__(self, order: list[str], say: Say, stop: bool = True) -> None:
        self.order, self.say, self.stop, self.failed = order, say, stop, False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self.in_order(items)

    def in_order(self, items: list[pytest.Item]) -> list[pytest.Item]:
        known = {item.nodeid: item for item in items}
        return [known[test] for test in self.order if test in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self.say("failed", report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:  # tests that could not be imported
            self.say("failed", "import")
        else:
            self.run(session.items)
        return True

    def run(self, items: list[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.say("test", item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed and self.stop:
                break
        self.say("end", "")


class WarmTrials:
    """Collects all tests once, then does its work in forks of this process."""

    def __init__(self, folder: Path, work: Callable[[WarmTrials], None]) -> None:
        self.folder, self.work = folder, work
        self.items: list[pytest.Item] = []
        self.functions: Functions = {}
        self.on_import: Lines = {}
        self.coverage = coverage_of(folder)
        self.coverage.start()  # before pytest imports what the tests share

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.coverage.stop()
        self.on_import = lines_of(self.coverage, self.folder).get("", {})
        self.items = session.items
        self.functions = functions_of(self.folder / "aten_dump")
        gc.collect()
        gc.freeze()  # forks share what is here
        self.work(self)
        os._exit(0)

    def measure(self, tests: list[str], target: Path) -> None:
        """Run tests under coverage, and write their seconds and lines to a file."""

        def work(say: Say) -> None:
            coverage = coverage_of(self.folder)
            plugin = ReachPlugin(coverage)
            self.items[0].config.pluginmanager.register(plugin)
            coverage.start()
            self.trial(tests, say, stop=False)
            coverage.stop()
            target.write_text(json.dumps([plugin.seconds, lines_of(coverage, self.folder)]), encoding="utf-8")

        in_fork(work, self.folder, lambda _: 600)

    def unchanged(self, test: str, seconds: dict[str, float]) -> Ending:
        return in_fork(lambda say: self.trial([test], say), self.folder, lambda test: limit(seconds, test))

    def changed(self, file: str, function: Function, order: list[str], seconds: dict[str, float]) -> Ending | None:
        """Try one change inside a function, from its changed file; return None where the code cannot be exchanged."""
        path = str(self.folder / file)
        source = Path(path).read_text(encoding="utf-8")
        outer = next(
            (
                code
                for code in codes_in(compile(source, path, "exec", dont_inherit=True))
                if code_key(code) == (path, *function)
            ),
            None,
        )
        if outer is None or not self.functions.get((path, *function)):
            return None
        # Functions that it has made already, and that live on, are changed too.
        codes = list(codes_in(outer))
        exchanged = [(old, code) for code in codes for old in self.functions.get(code_key(code), ())]
        is_unclear = max(Counter(map(code_key, codes)).values()) > 1 and len(exchanged) > 1
        if is_unclear or any(code.co_freevars != old.__code__.co_freevars for old, code in exchanged):
            return None

        def work(say: Say) -> None:
            for old, code in exchanged:
                old.__code__ = code
            self.trial(order, say)

        return in_fork(work, self.folder, lambda test: limit(seconds, test))

    def trial(self, order: list[str], say: Say, stop: bool = True) -> None:
        trial = OneTrial(order, say, stop)
        self.items[0].config.pluginmanager.register(trial)
        trial.run(trial.in_order(self.items))


def cold_trial(folder: Path, options: list[str], order: list[str], seconds: dict[str, float]) -> Ending:
    """Run tests that import everything anew."""

    def work(say: Say) -> None:
        trial = OneTrial(order, say)
        ended = pytest_in(folder, sorted({test.partition("::")[0] for test in order}), options, trial)
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            say("failed", "import")

    return in_fork(work, folder, lambda test: limit(seconds, test))


def limit(seconds: dict[str, float], test: str) -> float:
    return FLOOR_SECONDS + TIMES * seconds.get(test, IMPORT_SECONDS)


def pytest_in(folder: Path, tests: list[str], options: list[str], plugin: object) -> int:
    """Run pytest in a fork, on the checkout's copy in a folder."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "aten_dump")]:
        del sys.modules[name]  # the copy's are another
    return int(pytest.main([*OPTIONS, f"--basetemp={folder / 'tmp'}", *options, *tests], plugins=[plugin]))


def functions_of(package: Path) -> Functions:
    """Return the functions that have been made from files of a package, by where their code is."""
    functions: Functions = {}
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(f"{package}/"):
            functions.setdefault(code_key(found.__code__), []).append(found)
    return functions


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_in(inner)


def code_key(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name
