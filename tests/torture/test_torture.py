"""A seeded sample of `python -m tests.torture`; `make torture` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.__main__ import run, warmed_up
from tests.torture.hostile import HARMS

SAMPLE = {"killed": 6, "corrupted": 60, "mutated": 60, "hostile": 2 * len(HARMS), "interrupted": 40}


@pytest.mark.parametrize("kind", SAMPLE)
def test_nothing_hangs_nothing_is_wrong_and_errors_are_ours(tmp_path: Path, kind: str) -> None:
    with warmed_up():
        counts = run(kind, SAMPLE[kind], 10_000_000, tmp_path, seconds=60)
    assert counts.bad == []
    assert counts.cases == SAMPLE[kind] and counts.wrong == 0
    assert counts.refused or kind in ("killed", "interrupted")
