"""A seeded sample of `python -m tests.torture`; `make torture` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sampling import one_in
from tests.torture.__main__ import run, warmed_up
from tests.torture.hostile import HARMS

SAMPLE = {"killed": 6, "corrupted": 60, "mutated": 60, "hostile": 3 * len(HARMS), "interrupted": 45, "flipped": 9}


@pytest.mark.parametrize("part", one_in(3, range(3)))
@pytest.mark.parametrize("kind", SAMPLE)
def test_nothing_hangs_nothing_is_wrong_and_errors_are_ours(tmp_path: Path, kind: str, part: int) -> None:
    count = SAMPLE[kind] // 3
    with warmed_up():
        counts = run(kind, count, 10_000_000 + part * count, tmp_path, seconds=60)
    assert counts.bad == []
    assert counts.cases == count and counts.wrong == 0
    assert counts.refused or kind in ("killed", "interrupted")
