"""The HTML file: styles, code and sections in one document, under a policy that lets nothing else in.

Theory of operation
    No text of a dump is in the document but inside sections, which are gzip in base64: there is nothing to escape. The
    policy names the hashes of the styles and of each script. Code is compressed too: the one script that stands in
    the document as it is (``page/boot.js``) inflates the others and adds them, and the browser checks their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from .linking import link

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
