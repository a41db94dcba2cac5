"""Complete, interrupted or damaged, and how much is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.dump.wholeness import not_whole_lines
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.dump.scenario import linear_step


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        (r.FAILED, "interrupted", "the recorder failed, and what came after is not there: why"),
        (r.RECOVERED, "interrupted", "recovered after it was cut short"),
        (r.DAMAGED, "damaged", "recovered after it was damaged: why"),
        ("unseen", "complete", ""),
    ],
)
def test_notes_of_what_was_lost(code: str, state: str, said: str, builder: Builder) -> None:
    builder.value(torch.zeros(1))
    builder.emit(r.Note(r.NOTE, code, "why", 1))
    rank = open_dump(builder.finish()).rank(0, 0)
    assert rank.state == state and said in rank.lacks and rank.complete
    assert bool(rank.lacks) is (state != "complete")


def test_bytes_after_the_end_and_a_spoilt_last_check_are_damage_and_a_torn_tail_is_not(tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    index = root / "step0" / "rank0" / "index.msgpack"
    whole = index.read_bytes()
    for data, state in (
        (whole, "complete"),
        (whole + b"\x01", "damaged"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "damaged"),
        (whole[:-13] + bytes([whole[-13] ^ 0x40]) + whole[-12:], "damaged"),
        (whole[:-1], "interrupted"),
        (whole[:-40], "interrupted"),
        (whole + bytes(30), "damaged"),
        (b"", "interrupted"),
    ):
        index.write_bytes(data)
        assert open_dump(root).rank(0, 0).state == state, (len(whole), len(data))
    index.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "0 of 10 calls can be read" in open_dump(root).rank(0, 0).lacks


def test_of_many_the_first_line_counts_them(tmp_path: Path) -> None:
    root = tmp_path / "dump"
    for rank in range(12):
        linear_step(root, rank=rank).builder.finish(commit=False, torn=bytes(rank + 1))
    linear_step(root, step=1).builder.finish()
    first, *lines, last = not_whole_lines(root, open_dump(root).all_ranks())
    assert first == f"{root} is not whole: 12 of 13 step/rank folders lack something"
    assert len(lines) == 8 and last == "... 4 more such lines"
    assert not_whole_lines(root, [open_dump(root).rank(1, 0)]) == []
