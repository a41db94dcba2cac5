"""The notebooks of the docs run from top to bottom, and print what they show."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.checkout import ROOT
from tests.docs.notebooks import NOTEBOOKS, executed, texts
from tests.docs.pages import plain

BRIEF = "gradients"


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=() if path.stem == BRIEF else pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_prints_what_it_shows(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = texts(nbformat.read(notebook, as_version=4))
    assert any(shown)
    assert [plain(text) for text in texts(executed(notebook, tmp_path))] == [plain(text) for text in shown]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "first_look", "gradients"]
