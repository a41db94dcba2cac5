"""Tells where in a file a place lies: the lines of its statement, and the function whose code holds it."""

from __future__ import annotations

import ast
from typing import NamedTuple

Function = tuple[int, str]  # its first line (that of a decorator, if it has one) and its name, as its code object says


class Whereabouts(NamedTuple):
    """The statement around a place, and the outermost function around that; None for what runs on import."""

    lines: range
    function: Function | None


def whereabouts(source: str, line: int, column: int) -> Whereabouts:
    """Find the innermost statement (of a compound one: its head) that holds a place."""
    node: ast.AST = ast.parse(source)
    lines, function = range(line, line + 1), None
    while (inner := child_at(node, line, column)) is not None:
        node = inner
        if isinstance(node, ast.stmt | ast.excepthandler):
            lines = range(first_line(node), head_end(node) + 1)
        if function is None and isinstance(node, ast.FunctionDef) and line > head_end(node):
            function = first_line(node), node.name
    return Whereabouts(lines, function)


def child_at(node: ast.AST, line: int, column: int) -> ast.AST | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.match_case):  # has no place of its own
            held = child_at(child, line, column)
            if held is not None:
                return held
        elif hasattr(child, "lineno") and start(child) <= (line, column) < (child.end_lineno, child.end_col_offset):
            return child
    return None


def start(node: ast.AST) -> tuple[int, int]:
    return first_line(node), 0 if first_line(node) < node.lineno else node.col_offset  # type: ignore[attr-defined]


def first_line(node: ast.AST) -> int:
    return min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]


def head_end(node: ast.AST) -> int:
    """Return the last line of a simple statement, or of what precedes the body of a compound one."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not isinstance(body, list):
        return int(node.end_lineno)  # type: ignore[attr-defined]
    inner = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return max(first_line(node), first_line(inner) - 1)
