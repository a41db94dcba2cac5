"""Programs that write without an op (`writers.py`), recorded with `dedup="sample"`: each write is noted, and no op is accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from tests.capture.bits import assert_same
from tests.capture.values.writers import PROGRAMS

# One of each kind; the others differ in how they come to the memory.
_SOON = frozenset({
    "readinto of a file", "a fork", "another program", "numpy's add.at", "an op that does not name what it writes", "cffi",
    "pages of a cache", "a simulator", "a function by hand",
})  # fmt: skip


def _recorded(root: Path, name: str, side: str) -> list[object]:
    (root / f"{side}-files").mkdir()
    with DumpMode(DumpConfig(path=str(root / side), data="tensor", dedup="sample")) as dump:
        return [*PROGRAMS[name].run(root / f"{side}-files", dump.step)]


@pytest.mark.parametrize(
    "name", [name if name in _SOON else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_a_write_of_a_program_is_noted_and_no_op_is_accused(tmp_path: Path, name: str) -> None:
    (tmp_path / "bare").mkdir()
    bare = PROGRAMS[name].run(tmp_path / "bare", lambda: None)
    for side in ("one", "other"):
        for expected, found in zip(bare, _recorded(tmp_path, name, side), strict=True):
            assert_same(expected, found)
    for number in (0, 1):
        rank = open_dump(str(tmp_path / "one")).step(number).rank(0)
        readers = {write.first.op for write in rank.unseen_writes if write.first is not None}
        assert readers >= PROGRAMS[name].readers
        (note,) = (note.message for note in rank.notes if note.code == "unseen_writes")
        assert " between " in note
        assert not replay(rank).suspects
    found = compare(str(tmp_path / "one"), str(tmp_path / "other"))
    assert found.exit_code == 0, found.answer()
