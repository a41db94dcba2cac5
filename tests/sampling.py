"""Which of many cases run with the others, and which with those that take longest."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def every_second(cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test of which every second one, from the second on, is marked slow (`make test-slow`)."""
    return one_in(2, cases)


def one_in(many: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test that are marked slow but for the first of every so many."""
    return [pytest.param(case, marks=pytest.mark.slow) if number % many else case for number, case in enumerate(cases)]


def slow_but_for(quick: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test that are marked slow but for some."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
