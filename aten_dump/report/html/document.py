"""The HTML file: styles, code and sections in one document, under a policy that lets nothing else in.

Theory of operation
    No text of a dump is in the document but inside sections, which are gzip in base64: there is nothing to escape. The
    policy names the hashes of the styles and of each script. Code is compressed too: the one script that stands in
    the document as it is (``page/boot.js``) inflates the others and adds them, and the browser checks their hashes.

    Every module becomes a function that returns what it exports, called once, in an order in which each comes after
    those that it imports. That takes a few plain rules, which `link` checks: imports name what they take, from a
    relative path, without renaming; exports stand before a declaration; modules do not import each other in a circle.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from ...errors import StoreError
from ...whole_files import refuse_to_replace_part_of, replaced_when_whole
from .payload.sections import Subject, report_sections

_IMPORT: Final = re.compile(r'^import \{(\s*\w+(?:,\s*\w+)*,?\s*)\} from "(\.[\w./-]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_COMMENT: Final = re.compile(r"^[ \t]*/\*\*.*?\*/\n", re.MULTILINE | re.DOTALL)

PAGE: Final = Path(__file__).parent / "page"
VENDOR: Final = Path(__file__).parent / "vendor"
_STYLES: Final = ("theme", "frame", "answer", "table", "call", "strip", "graph", "charts", "tensor", "print")
_SCRIPTS: Final = {"uplot": "uPlot.iife.min.js", "dagre": "dagre.min.js"}
_LEVEL: Final = 9


@cache
def page_parts() -> tuple[str, dict[str, str]]:
    """Return the styles, and the scripts by name."""
    styles = "".join((PAGE / "css" / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES)
    scripts = {"app": link(PAGE, "main.js")}
    for name, file in _SCRIPTS.items():
        scripts[name] = (VENDOR / name / file).read_text(encoding="utf-8")
    return styles + (VENDOR / "uplot" / "uPlot.min.css").read_text(encoding="utf-8"), scripts


def policy(connect: str = "'none'") -> str:
    """Return the Content-Security-Policy of the page; `connect` is where it may fetch from."""
    styles, scripts = page_parts()
    allowed = " ".join(_hash(text) for text in (_boot(), *scripts.values()))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(styles)}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types aten-dump"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _boot() -> str:
    return (PAGE / "boot.js").read_text(encoding="utf-8")


def document(sections: Iterable[tuple[str, bytes]], *, connect: str = "'none'") -> Iterator[str]:
    """Yield the document piece by piece.

    Args:
        sections: names, of letters, digits and slashes only, and bytes.
        connect: where the page may fetch from, as in a policy.
    """
    styles, scripts = page_parts()
    head, foot = (PAGE / "page.html").read_text(encoding="utf-8").split("<!-- sections -->\n")
    yield head.replace("<!-- policy -->", policy(connect)).replace("<!-- styles -->", styles)
    for name, data in sections:
        yield _element("section", name, data)
    for name, text in scripts.items():
        yield _element("script", name, text.encode())
    yield foot.replace("<!-- boot -->", _boot())


def _element(kind: str, name: str, data: bytes) -> str:
    assert name.replace("/", "").isalnum(), name
    text = base64.b64encode(gzip.compress(data, _LEVEL, mtime=0)).decode()
    return f'<script type="application/octet-stream" data-{kind}="{name}">{text}</script>\n'


class LinkError(Exception):
    """A module of the page breaks a rule of `link`: a bug in aten_dump, which the tests find."""


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


def write_report(subject: Subject, path: str | os.PathLike[str]) -> int:
    """Write a report and return its bytes.

    Args:
        subject: what it is about.
        path: the HTML file; see `replaced_when_whole`.

    Raises:
        ConfigError: the file is part of a dump.
        StoreError: it cannot be written.
    """
    refuse_to_replace_part_of([dump.path for _, dump in subject.sides()], path)
    nbytes = 0
    try:
        with replaced_when_whole(path) as part, open(part, "wb") as file:
            for text in document(report_sections(subject)):
                nbytes += file.write(text.encode())
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
    return nbytes
