"""Which of many cases run with the others, and which with those that take longest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every_second(cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test of which every second one, from the second on, is marked slow (`make test-slow`)."""
    return [pytest.param(case, marks=pytest.mark.slow) if number % 2 else case for number, case in enumerate(cases)]
