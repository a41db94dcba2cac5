"""Joins the page's ES modules into one script, so that one file holds it and one hash in its policy allows it.

Theory of operation
    Every module becomes a function that returns what it exports, called once, in an order in which each comes after
    those that it imports. That takes a few plain rules, which `link` checks: imports name what they take, from a
    relative path, without renaming; exports stand before a declaration; modules do not import each other in a circle.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

_IMPORT: Final = re.compile(r'^import \{(\s*\w+(?:,\s*\w+)*,?\s*)\} from "(\.[\w./-]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_COMMENT: Final = re.compile(r"^[ \t]*/\*\*.*?\*/\n", re.MULTILINE | re.DOTALL)


class LinkError(Exception):
    """A module of the page breaks a rule of `link`; a bug of ours, found by the tests."""


def link(folder: Path, start: str) -> str:
    """Return one script of a module and all that it imports.

    Args:
        folder: where the modules are.
        start: path of the first one in it.

    Raises:
        LinkError: a module breaks the rules above.
    """
    done: dict[str, str] = {}
    _add(folder, PurePosixPath(start), done, ())
    return '"use strict";\n' + "".join(done.values())


def _add(folder: Path, path: PurePosixPath, done: dict[str, str], outer: tuple[str, ...]) -> None:
    name = path.as_posix()
    if name in outer:
        raise LinkError(f"modules import each other in a circle: {' -> '.join((*outer, name))}")
    if name in done:
        return
    source = _COMMENT.sub("", (folder / path).read_text(encoding="utf-8"))
    taken = ""
    for names, target in _IMPORT.findall(source):
        other = _resolved(path.parent, target)
        _add(folder, other, done, (*outer, name))
        taken += f"const {{{' '.join(names.split())}}} = {_variable(other)};\n"
    exports = [found[1] for found in _EXPORT.findall(source)]
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub("", source))
    wrong = _OTHER.search(body)
    if wrong is not None:
        raise LinkError(f"{name}: {wrong[0]!r} is a form of import or export that is not joined; see linking.py")
    done[name] = f"const {_variable(path)} = (() => {{\n{taken}{body}return {{{', '.join(exports)}}};\n}})();\n"


def _resolved(folder: PurePosixPath, target: str) -> PurePosixPath:
    parts: list[str] = list(folder.parts)
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def _variable(path: PurePosixPath) -> str:
    return "$" + re.sub(r"\W", "_", path.with_suffix("").as_posix())
