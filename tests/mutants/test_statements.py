"""Where a place lies: which lines are its statement's, and which function's code holds it."""

from __future__ import annotations

import re

import pytest

from tests.mutants.statements import whereabouts

SOURCE = """\
LIMIT = (
    1 +
    2)

@decorated(3)
def outer(x=4):
    if (x and
            5):
        return [
            6]
    def inner():
        return 7
    match x:
        case 8:
            return inner
    try:
        pass
    except ValueError(9):
        pass

class Thing:
    size = 10
"""
OUTER = (5, "outer")


@pytest.mark.parametrize(
    ("number", "lines", "function"),
    [
        ("1", (1, 3), None), ("2", (1, 3), None), ("3", (5, 6), None), ("4", (5, 6), None), ("5", (7, 8), OUTER),
        ("6", (9, 10), OUTER), ("7", (12, 12), OUTER), ("8", (13, 13), OUTER), ("9", (18, 18), OUTER), ("10", (22, 22), None),
    ],
)  # fmt: skip
def test_places(number: str, lines: tuple[int, int], function: tuple[int, str] | None) -> None:
    [(line, column)] = [
        (at, found.start())
        for at, text in enumerate(SOURCE.splitlines(), 1)
        if (found := re.search(rf"\b{number}\b", text))
    ]
    found = whereabouts(SOURCE, line, column)
    assert (found.lines.start, found.lines.stop - 1, found.function) == (*lines, function)
