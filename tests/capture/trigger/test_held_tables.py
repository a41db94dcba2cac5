"""What a held step names by number can be asked for, and is let go once."""

from __future__ import annotations

import pytest

from aten_dump.capture.trigger.held_step import HeldTables
from aten_dump.store import records as r

TEXT, OTHER = r.Text(r.TEXT, 1, "fc"), r.Text(r.TEXT, 2, "conv")
OP = r.Op(r.OP, 1, 0, "aten::exp", "Aten", "exp", ["self"])
NOTE = r.Note(r.NOTE, "traced", "why", 1)


def test_what_was_learnt_is_found_by_its_number() -> None:
    tables = HeldTables()
    for record in (TEXT, OP, r.Frame(r.FRAME, 1, 1, 10, 2, True)):
        tables.learn(record)
    assert (tables.op(1), tables.text(1), tables.text(0), tables.text(9)) == (OP, "fc", "", "")
    assert tables.has_op("aten::exp") and not tables.has_op("aten::ex")
    with pytest.raises(KeyError):
        tables.op(2)


def test_tables_are_let_go_before_notes_in_their_order_and_once() -> None:
    tables = HeldTables()
    for record in (TEXT, NOTE, OP, OTHER):
        tables.hold(record)
    assert tables.release() == [TEXT, OP, OTHER, NOTE]
    assert tables.release() == []
    tables.hold(NOTE)
    assert tables.release() == [NOTE]


def test_what_is_let_go_is_still_known() -> None:
    tables = HeldTables()
    tables.learn(TEXT)
    tables.hold(TEXT)
    tables.release()
    assert tables.text(1) == "fc"
