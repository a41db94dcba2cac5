"""Nothing of a dump becomes markup or code: every string that a dump can hold is shown as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump.store import records as r
from tests.browser.opened import Opened
from tests.dump.building import Builder, value
from tests.sampling import every_second

Report = Callable[..., Path]
Open = Callable[..., Opened]

MARKUP = "</script></style><img src=x onerror=window.hacked=1><svg onload=window.hacked=1>"
STRINGS = {
    "markup": MARKUP,
    "quotes": "\"'`${window.hacked=1}&lt;&amp;\\",
    "separators": "a\u2028b\u2029c\u0085d",
    "ansi": "\x1b[31mred\x1b[0m\x07",
    "direction": "\u202egnp.exe",
    "address": "javascript:window.hacked=1",
    "proto": "__proto__",
    "long": "x" * 3000,
}
VIEWS = ("answer", "strip", "calls", "call", "graph", "steps", "memory")


def build(root: Path, text: str) -> Path:
    """Make a dump in which all that is text is `text`."""
    b = Builder(
        root, config={"statistics": ["count", "min", "max", "mean", "l2norm", "std", "nan", "posinf", "neginf"]}
    )
    module = b.op("module", text, "Module", text)
    op = b.op("aten", f"aten::{text}", "Aten", text, (text,))
    api = b.op("api", text, text, text)
    stack = b.stack((f"/{text}.py", 3, text, True))
    x = b.value(torch.randn(4))
    y = b.value(torch.randn(4), device=text)
    b.emit(r.Statistics(r.STATISTICS, x, [4, -1.0, 1.0, 0.0, 2.0, 1.0, 1, 0, 0]))
    b.call(module, id=1, args=[value(x), text], outputs=value(y), module=text, stack=stack)
    b.call(api, id=2, parent=1, args=[value(x)], kwargs={text: text}, outputs=value(y), module=text, stack=stack)
    b.call(
        op,
        id=3,
        parent=2,
        args=[value(x), [r.TREE_OBJECT, text]],
        outputs=value(y),
        written=[text, value(y)],
        module=text,
        stack=stack,
        error=text,
        sequence_nr=1,
    )
    b.call(op, id=4, phase="backward", forward=3, args=[value(y)], outputs=value(x), module=text, stack=stack)
    b.emit(r.Saved(r.SAVED, 3, text, [y]))
    b.emit(r.Gradient(r.GRADIENT, text, x, 4))
    b.emit(r.Note(r.NOTE, text, text, 2))
    b.finish()
    (root / "run.json").write_text(
        json.dumps({"world_size": 1, "command": [text], "packages": {text: text}, "platform": text})
    )
    return root


@pytest.mark.parametrize("kind", every_second(STRINGS))
def test_strings_of_a_dump_are_shown_as_text(kind: str, tmp_path: Path, report_of: Report, open_report: Open) -> None:
    text = STRINGS[kind]
    folder = tmp_path / text.replace("/", "")[:60].replace("\x07", "")
    report = open_report(report_of(build(folder, text)))
    for view in VIEWS:
        report.go(f"view={view}&call={address(f'Aten.{text}.0.forward')}", view)
        report.page.wait_for_timeout(60)
        assert report.page.evaluate(
            "window.hacked === undefined && !document.querySelector('img, iframe, object, embed')"
        )
        assert report.page.evaluate(
            "[...document.querySelectorAll('a')].every(a => a.getAttribute('href').startsWith('#'))"
        )
    report.go(f"call={address(f'Aten.{text}.0.forward')}", "call")
    assert report.page.evaluate("document.querySelector('h1').textContent") == f"Aten.{text}.0.forward"
    shown = report.page.evaluate("document.querySelector('main').textContent")
    assert f"/{text}.py:3" in shown
    assert f"raised {text}" in shown
    report.go("view=answer", "answer")
    assert f"{text} (2 times)" in report.page.evaluate("document.querySelector('main').textContent")


def address(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def test_the_policy_stops_what_gets_past(recorded: Path, report_of: Report, browser: object, open_report: Open) -> None:
    """Even a script that is put into the page does not run, and nothing can be fetched."""
    report = open_report(report_of(recorded / "nan"))
    report.page.evaluate(
        """async () => {
          const image = document.createElement('img');
          try { image.setAttribute('onerror', 'window.hacked = 1'); } catch { /* refused */ }
          image.src = 'data:,';
          document.body.append(image);
          try { document.body.innerHTML += '<b>x</b>'; window.hacked = 2; } catch (error) { window.refused = String(error); }
          try { await fetch('https://127.0.0.1:9/'); window.hacked = 3; } catch { window.unfetched = true; }
          await new Promise(done => setTimeout(done, 100));
        }"""
    )
    assert report.page.evaluate("window.hacked") is None
    assert "TrustedHTML" in report.page.evaluate("window.refused")
    assert report.page.evaluate("window.unfetched")
    assert any("Content Security Policy" in text for text in report.wrong)
    report.wrong.clear()
    report.requests.clear()
