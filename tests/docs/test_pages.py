"""Pages of the docs do what they say: their programs, commands and outputs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from aten_dump.cli.main import COMMANDS
from tests.checkout import ROOT
from tests.docs.pages import BLOCK, Page, Said

DOCS = ROOT / "docs"
PAGES = ["guide/my-loss-is-nan", "guide/too-much-data", "guide/drifts"]
SLOW = ["tutorial", "guide/micro-batches-and-batch-disagree", "guide/differs-on-another-machine"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the present folder, which holds the examples."""
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.parametrize("name", [*PAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_page_prints_what_it_says(name: str, here: Path) -> None:
    said = list(Page(DOCS / f"{name}.md").run())
    assert said
    for one in said:
        assert one.agrees, f"$ {one.source}\nsays\n{one.expected}\nprints\n{one.printed}"


def test_the_page_of_a_run_against_another_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "guide" / "not-deterministic.md").read_text(encoding="utf-8")
    section = page.partition("## Where a run parts from one made before")[2]
    (code,), (told,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "text"))
    exec(compile(code, "train.py", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == told


def test_the_tutorial_has_all_commands() -> None:
    lines = [
        line
        for block in BLOCK.finditer((DOCS / "tutorial.md").read_text(encoding="utf-8"))
        for line in block[3].splitlines()
    ]
    assert [name for name in COMMANDS if not any(line.startswith(f"$ aten-dump {name} ") for line in lines)] == []


@pytest.mark.parametrize(
    ("expected", "printed", "agrees"),
    [
        ("loss 0.123\n", "loss 0.456\n", True),  # a machine decides the digits
        ("a  b\n", "a b\n", True),
        ("first\n...\nlast\n", "first\n2\n3\nlast\n", True),
        ("2 steps\n", "3 steps\n", False),
        ("first\n...\n", "second\n", False),
        ("first\n", "first\nmore\n", False),
        ("", "anything\n", False),
    ],
)
def test_what_is_compared(expected: str, printed: str, agrees: bool) -> None:
    assert Said("", expected, printed).agrees is agrees


def test_the_glossary_has_the_words_of_messages() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    for word in ("call", "value", "slot", "step", "floor", "level", "target", "baseline"):
        assert f"| **{word}** |" in text


def test_the_menu_of_the_site_has_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert len(pages) > 40
    assert [page for page in pages if f" {page}\n" not in menu] == []
