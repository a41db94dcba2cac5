"""Docs and messages are in plain English: words that had to be read twice are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.checkout import ROOT
from tests.structure import nodes_of

NOT_USED = re.compile(r"\b(tells?|told|telling|mended)\b|\bin place of\b|\bthat there (is|are)\b", re.IGNORECASE)
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *(ROOT / "docs").rglob("*.md")]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, docstrings left out."""
    with_docs = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [node.body[0] for node in nodes_of(path) if isinstance(node, with_docs) and node.body]
    docs = {id(first.value) for first in firsts if isinstance(first, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_docs_use_plain_words() -> None:
    lines = [
        f"{page.relative_to(ROOT)}:{number}: {line}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if NOT_USED.search(line)
    ]
    assert lines == []


def test_messages_use_plain_words() -> None:
    texts = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "aten_dump").rglob("*.py"))
        for line, text in messages(path)
        if NOT_USED.search(text)
    ]
    assert texts == []
