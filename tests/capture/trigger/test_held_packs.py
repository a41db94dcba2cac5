"""What a call has saved for backward is written with it, and what nodes fetch of that; nothing of other calls."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.trigger.step_file import HeldPacks
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from tests.capture.trigger.recording import Ring, call, storage, value
from tests.torch_features import needs_saved_hooks_shown

NOTE = r.Note(r.NOTE, "trigger", "why", 1)


def packed(number: int, by: int, what: int = 0) -> r.Packed:
    return r.Packed(r.PACKED, number, by, what, number)


def fetched(number: int) -> r.Fetched:
    return r.Fetched(r.FETCHED, number, 9, 50 + number)


def test_records_are_written_with_their_call_or_not_at_all() -> None:
    ring = Ring()
    ring.take(storage(1), value(1, on=1), packed(1, by=1), packed(2, by=2, what=1), packed(3, by=0), packed(4, by=2))
    ring.take(call(1), call(2), fetched(1), fetched(2))
    ring.step.write(2, 2, NOTE)
    assert ring.written()[3:] == [
        (r.CALL, 2), (r.STORAGE, 1), (r.VALUE, 1), (r.PACKED, 2), (r.FETCHED, 2), (r.PACKED, 4),
    ]  # fmt: skip
    before = len(ring.sink.records)
    ring.take(fetched(4), fetched(1), fetched(3), packed(5, by=2), fetched(5))
    assert ring.written()[before:] == [(r.FETCHED, 4), (r.PACKED, 5), (r.FETCHED, 5)]
    ring.step.write(1, 2, NOTE)
    assert ring.written()[-4:] == [(r.CALL, 1), (r.PACKED, 1), (r.FETCHED, 1), (r.FETCHED, 1)]


def test_of_calls_that_the_ring_has_dropped_nothing_is_kept() -> None:
    ring = Ring()
    ring.take(packed(1, by=1), call(1), packed(2, by=2), call(2))
    ring.step.drop_oldest()
    ring.take(fetched(1), fetched(2))
    packs: HeldPacks = ring.step._packs
    assert list(packs._by_call) == [2] and list(packs._fetched) == [2]


@needs_saved_hooks_shown
def test_a_window_tells_when_its_tensors_were_saved_and_fetched(tmp_path: Path) -> None:
    w = torch.full((4,), 1.0, requires_grad=True)
    config = DumpConfig(tmp_path / "dump", trigger="nonfinite", saved_tensors="hooks", trigger_before=6)
    with DumpMode(config) as dump:
        y = w
        for _ in range(30):
            y = y.sin()
        (y / torch.zeros(4)).sum().backward()
        dump.step()
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    found = rank.packed_tensors()
    assert 1 <= len([one for one in found if one.call is not None]) == len(found) < 12, "of the window, not of the step"
    assert [one.at_ns for one in found] == sorted(one.at_ns for one in found)
    assert any(node is not None and at_ns > one.at_ns for one in found for node, at_ns in one.fetched)
    assert verify(rank.directory) == []
