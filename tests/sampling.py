"""Which of many cases run with the others, and which with those that take longest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
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


def diagonal(*factors: Sequence[Any], ids: Callable[[Any], str] | None = str) -> list[Any]:
    """Return parameters of every combination, slow but for a few in which each value of each factor occurs.

    What is a tuple is several parameters. Ids are those that one decorator for each factor makes.
    """
    sizes = sorted(map(len, factors))
    apart = min(sizes[-1], 1 + sum(size - 1 for size in sizes[:-1]))
    found = []
    for places in itertools.product(*map(range, map(len, factors))):
        chosen = [factor[at] for factor, at in zip(factors, places, strict=True)]
        values = [value for one in chosen for value in (one if isinstance(one, tuple) else (one,))]
        name = "-".join(map(ids, values)) if ids else None
        found.append(pytest.param(*values, id=name, marks=pytest.mark.slow if sum(places) % apart else ()))
    return found
