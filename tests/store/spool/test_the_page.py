"""The page about object storage does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.docs.pages import Page
from tests.object_server import Faults


def test_the_page_prints_what_it_says(faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = list(Page(ROOT / "docs" / "guide" / "object-storage.md").run())
    assert len(said) == 6
    for one in said:
        assert one.agrees, f"$ {one.source}\nsays\n{one.expected}\nprints\n{one.printed}"
