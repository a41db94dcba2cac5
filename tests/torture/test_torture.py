"""A seeded sample of `python -m tests.torture`; `make torture` runs all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sampling import one_in, slow_but_for
from tests.torture.__main__ import MOST_BYTES, Counts, peak_bytes, run, spoil_foreign, warmed_up
from tests.torture.failing import library
from tests.torture.foreign import FOREIGN_HARMS
from tests.torture.full_disks import small_disk
from tests.torture.hostile import HARMS

PARTS = 12
SAMPLE = {
    "killed": 6,
    "corrupted": 60,
    "mutated": 60,
    "hostile": 3 * len(HARMS),
    "foreign": 30,
    "interrupted": 45,
    "failing": 45,
    "full": 18,
    "flipped": 9,
}


def skip_where_it_cannot_be(kind: str, folder: Path) -> None:
    if library() is None:
        pytest.skip("no C compiler here: neither cc nor gcc is on the path, or this is not Linux")
    with small_disk(folder / "looked at") as disk:
        if kind == "full" and disk is None:
            pytest.skip("cannot mount a small file system here: `mount -t tmpfs` is refused")


@pytest.mark.parametrize("part", one_in(PARTS, range(PARTS)))
# Interrupted ones: tests/capture/test_interrupts.py runs four.
@pytest.mark.parametrize("kind", slow_but_for([kind for kind in SAMPLE if kind != "interrupted"], SAMPLE))
def test_nothing_hangs_nothing_is_wrong_and_errors_are_ours(tmp_path: Path, kind: str, part: int) -> None:
    if kind in ("failing", "full"):
        skip_where_it_cannot_be(kind, tmp_path)
    count = max(1, SAMPLE[kind] // PARTS)
    with warmed_up():
        counts = run(kind, count, 10_000_000 + part * count, tmp_path, seconds=60)
    assert counts.bad == []
    assert counts.cases == count and counts.wrong == 0
    # The files of other tools have no checksums, so a few cases of theirs may all show nothing.
    assert counts.reported or kind in ("killed", "interrupted", "foreign")


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    with warmed_up():
        yield


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", one_in(4, FOREIGN_HARMS))
def test_dumps_of_other_tools_are_not_taken_at_their_word(tmp_path: Path, name: str) -> None:
    """The time limit is for what grows with the square of a table's rows, which takes minutes here."""
    counts = Counts()
    before = peak_bytes(forget=True)
    spoil_foreign(tmp_path / "dump", random.Random(0), counts, 30, name)
    assert peak_bytes() - before <= MOST_BYTES
    assert counts.untouched == 1
