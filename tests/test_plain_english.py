"""Docs, messages, docstrings and comments are in plain English: usual words, and short sentences."""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.structure import nodes_of

NOT_USED = re.compile(r"\b(tells?|told|telling|mended)\b|\bin place of\b|\bthat there (is|are)\b", re.IGNORECASE)
NOT_BEGUN_WITH = re.compile(r"(Tells?|Says?|Whether|Return whether)\b")
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *(ROOT / "docs").rglob("*.md")]
SOURCES = sorted((ROOT / "aten_dump").rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LONG = 30  # words
FEW = 0.02  # of all sentences
NO_PROSE = re.compile(r"(?m)^ *(>>>|\.\.\. |={4}|aten-dump |\$ |[a-z_]{1,20}(, [a-z_]+)*  +).*$")


@functools.cache
def docstrings(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings of a module with their lines."""
    documented = (node for node in nodes_of(path) if isinstance(node, DOCUMENTED))
    return [(node.body[0].lineno, text) for node in documented if (text := ast.get_docstring(node))]


@functools.cache
def comments(path: Path) -> list[tuple[int, str]]:
    """Return the comments of a module with their lines, those on consecutive lines as one."""
    found: list[tuple[int, str]] = []
    last = -1  # line of a comment that goes on
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                text, line = token.string.lstrip("# "), token.start[0]
                is_alone = token.line.lstrip().startswith("#")
                if is_alone and line == last + 1:
                    found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
                else:
                    found.append((line, text))
                last = line if is_alone else -1
    return found


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, docstrings left out."""
    firsts = [node.body[0] for node in nodes_of(path) if isinstance(node, DOCUMENTED) and node.body]
    docs = {id(first.value) for first in firsts if isinstance(first, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def lines(path: Path) -> Iterator[tuple[int, str]]:
    yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, items and cells of a page, without its code."""
    text = re.sub(r"```.*?```|<[^>]*>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"(?m)^ *([-*]|\d+\.|#+|\|) +", "\n\n", text).replace(" | ", "\n\n")
    yield from ((0, block) for block in re.split(r"\n\s*\n", text))


def sentences(texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the sentences of texts; an argument's line of a docstring is a text of its own."""
    for _, text in texts:
        for part in re.split(r"\n\s*\n|Theory of operation\n|\n(?= *\w+: )|\n(?= *- )", NO_PROSE.sub("", text)):
            yield from re.split(r"(?<=[.!?])[\"')]*\s+(?=\S)", part)


def is_long(sentence: str) -> bool:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split()) > LONG


@pytest.mark.parametrize(
    ("paths", "read"),
    [(PAGES, lines), (SOURCES, messages), (SOURCES, docstrings), (SOURCES, comments)],
    ids=["pages", "messages", "docstrings", "comments"],
)
def test_words_are_plain(paths: list[Path], read: Callable[[Path], Iterable[tuple[int, str]]]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in paths
        for line, text in read(path)
        if NOT_USED.search(text)
    ]
    assert found == []


def test_docstrings_begin_with_what_is_done() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.partition('.')[0]}"
        for path in SOURCES
        for line, text in docstrings(path)
        if NOT_BEGUN_WITH.match(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("paths", "read"), [(PAGES, [blocks]), (SOURCES, [docstrings, comments])], ids=["pages", "package"]
)
def test_few_sentences_are_long(paths: list[Path], read: list[Callable[[Path], Iterable[tuple[int, str]]]]) -> None:
    found = [sentence for path in paths for each in read for sentence in sentences(each(path)) if sentence.strip()]
    long = [sentence for sentence in found if is_long(sentence)]
    assert len(long) <= FEW * len(found), "\n\n".join(long)
