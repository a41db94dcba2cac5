"""Finds which tests execute which line: each file of tests runs once under line coverage, with a context for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coverage import Coverage

from tests.mutants.statements import Whereabouts

os.environ["COVERAGE_CORE"] = "ctrace"  # the one that knows threads and contexts on every Python
Lines = dict[str, list[int]]  # of each file


@dataclass(slots=True)
class Reach:
    """What tests executed, how long each took, and what ran on import."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, Lines] = field(default_factory=dict)  # by test, or by file of tests for what its fixtures did
    on_import: Lines = field(default_factory=dict)

    def tests_at(self, path: str, lines: range | None) -> set[str]:
        """Return the tests that execute some lines of a file, or any of it."""
        found = set()
        for context, by_file in self.lines.items():
            if any(lines is None or line in lines for line in by_file.get(path, ())):
                found.add(context)
        files = tuple(f"{context}::" for context in found if "::" not in context)
        return {test for test in self.seconds if test in found or (files and test.startswith(files))}

    def runs_on_import(self, path: str, place: Whereabouts) -> bool:
        """Return True if a place has been executed before the first test."""
        return place.function is None or any(line in place.lines for line in self.on_import.get(path, ()))

    def order(self, path: str, place: Whereabouts, most_seconds: float) -> list[str]:
        """Return the tests that may notice a change, quickest first, as many as fit in some seconds.

        What is executed on import (a constant, a default) may be noticed by any; those that execute its file run first.
        What none executes may be executed by programs that the tests of its module start.
        """
        ranks = dict.fromkeys(self.tests_at(path, place.lines), 0)
        if not ranks:
            ranks = {test: 0 for test in self.seconds if f"/test_{Path(path).name}::" in test}
        if self.runs_on_import(path, place):
            ranks = dict.fromkeys(self.seconds, 2) | dict.fromkeys(self.tests_at(path, None), 1) | ranks
        order, spent = [], 0.0
        for test in sorted(ranks, key=lambda test: (ranks[test], self.seconds[test])):
            spent += self.seconds[test]
            if order and spent > most_seconds:
                break
            order.append(test)
        return order


def coverage_of(package: Path) -> Coverage:
    return Coverage(data_file=None, config_file=False, include=[f"{package}/aten_dump/*"], messages=False)


def lines_of(coverage: Coverage, package: Path) -> dict[str, Lines]:
    """Return the lines that have been executed, by context and file."""
    data, lines = coverage.get_data(), dict[str, Lines]()
    for name in data.measured_files():
        for line, contexts in data.contexts_by_lineno(name).items():
            for context in contexts:
                lines.setdefault(context, {}).setdefault(Path(name).relative_to(package).as_posix(), []).append(line)
    return lines


class ReachPlugin:
    """Tells the coverage which test runs, and how much processor time each took."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        answer = yield
        self.seconds[item.nodeid] = round(sum(os.times()[:4]) - before, 3)
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        # A fixture may serve the other tests of the file too.
        self.coverage.switch_context(item.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)
