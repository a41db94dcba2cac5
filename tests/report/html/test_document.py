"""The file: one policy, hashes that are right, and no text of a dump outside of sections."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from aten_dump.report.html.document import PAGE, VENDOR, document, page_parts
from aten_dump.report.html.payload.columns import Section

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`&\u2028\u2029\x1b[31m\ud800"


def written() -> str:
    section = Section()
    section.add_json("name", HOSTILE)
    return "".join(document([("outline", section.pack())]))


def hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_the_pages_own_code_and_nothing_else() -> None:
    page = written()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    inline = [
        text
        for kind, text in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
        if "octet-stream" not in kind
    ]
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    packed = dict(re.findall(r'data-script="(\w+)">([^<]*)</script>', page))
    scripts = [gzip.decompress(base64.b64decode(text)).decode() for text in packed.values()]
    assert set(packed) == {"app", "uplot", "dagre"}
    assert set(rules["script-src"].split()) == {hashed(text) for text in (*inline, *scripts)}
    assert rules["style-src"] == hashed(style)
    assert len(inline) == 1


def test_no_text_of_a_dump_is_in_the_page_but_in_sections() -> None:
    page = written()
    empty = "".join(document([]))
    section = re.search(
        r'<script type="application/octet-stream" data-section="outline">[A-Za-z0-9+/=]*</script>\n', page
    )
    assert section is not None
    assert page.replace(section[0], "") == empty
    data = gzip.decompress(base64.b64decode(section[0].split(">")[1].split("<")[0]))
    assert json.loads(data[4:])["json"]["name"] == HOSTILE


def test_the_page_names_no_address_in_the_network() -> None:
    page = written()
    styles, scripts = page_parts()
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    ours = scripts["app"] + styles + (PAGE / "boot.js").read_text()
    assert set(re.findall(r"https?://[^\s\"']+", ours)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|new Function)\b", ours)


def test_the_same_sections_make_the_same_file() -> None:
    assert written() == written()


@pytest.mark.parametrize(
    "folder", sorted(path.name for path in VENDOR.iterdir() if path.is_dir() and path.name != "__pycache__")
)
def test_what_others_made_lies_verbatim_with_version_and_licence(folder: str) -> None:
    facts = json.loads((VENDOR / "VENDORED.json").read_text())[folder]
    assert re.fullmatch(r"\d+\.\d+\.\d+", facts["version"])
    assert facts["licence"] == "MIT"
    files = {path.name for path in (VENDOR / folder).iterdir()}
    assert files == {Path(name).name for name in facts["files"]}
    assert "LICENSE" in files
    for name, checksum in facts["files"].items():
        assert hashlib.sha256((VENDOR / folder / Path(name).name).read_bytes()).hexdigest() == checksum


def test_no_more_than_three_scripts_of_others() -> None:
    assert len(list(VENDOR.rglob("*.js"))) <= 3
