"""Texts, ops, frames and stacks go to the sink once, and are numbered as the records say."""

from __future__ import annotations

import json
import sys
from types import CodeType, FrameType
from typing import Any

import torch

from aten_dump.capture.naming.call_name import API, ATEN, CallName
from aten_dump.capture.naming.interned_tables import OWN_CODE, Interner
from aten_dump.store import records as r
from tests.store.memory_sink import MemorySink


class Tables:
    """An interner, and what it emitted."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.interner = Interner(self.sink.emit)

    def functions(self, number: int) -> list[tuple[str, int, bool]]:
        """The frames of a stack, outermost first: function, line, whether it is the user's."""
        texts = {text.id: text.text for text in self.sink.of(r.TEXT)}
        frames = {frame.id: frame for frame in self.sink.of(r.FRAME)}
        stacks = {stack.id: stack for stack in self.sink.of(r.STACK)}
        found: list[tuple[str, int, bool]] = []
        while number:
            frame = frames[stacks[number].frame]
            found.insert(0, (texts[frame.function].rpartition(".")[2], frame.line, frame.user))
            number = stacks[number].parent
        return found


def here() -> FrameType:
    return sys._getframe(1)


def run_in(file: str, source: str, **names: Any) -> Any:
    """Run code that lies in `file`; returns its `found`."""
    code: CodeType = compile(source, file, "exec")
    exec(code, names)
    return names["found"]


def test_a_text_is_emitted_once_and_the_empty_one_never() -> None:
    tables = Tables()
    assert [tables.interner.text(text) for text in ("", "a", "b", "a", "")] == [0, 1, 2, 1, 0]
    assert tables.sink.records == [(r.TEXT, 1, "a"), (r.TEXT, 2, "b")]


def test_an_op_is_known_by_its_name_and_the_kind_of_call() -> None:
    tables, name = Tables(), CallName("aten::add.Tensor", "Aten", "add")
    numbers = [tables.interner.op(ATEN, name, ("self", "other")), tables.interner.op(API, name)]
    assert numbers == [1, 2] and tables.interner.op(ATEN, name, ("self", "other")) == 1
    assert tables.sink.records == [
        (r.OP, 1, ATEN, "aten::add.Tensor", "Aten", "add", ["self", "other"]),
        (r.OP, 2, API, "aten::add.Tensor", "Aten", "add", []),
    ]


def test_the_same_place_is_the_same_stack_and_another_line_is_not() -> None:
    tables = Tables()
    numbers = [tables.interner.stack(sys._getframe(), None, 0) for _ in range(3)]
    assert len(set(numbers)) == 1
    emitted = len(tables.sink.records)
    other = tables.interner.stack(sys._getframe(), None, 0)
    assert other != numbers[0]
    added = [record[0] for record in tables.sink.records[emitted:]]
    assert added == [r.FRAME, r.STACK], "the frames around it and its texts are known"
    assert tables.functions(other)[-1][1] == tables.functions(numbers[0])[-1][1] + 3


def test_two_places_of_one_line_are_two_stacks_of_one_frame() -> None:
    tables = Tables()
    pair = (tables.interner.stack(sys._getframe(), None, 0), tables.interner.stack(sys._getframe(), None, 0))
    assert pair[0] != pair[1] and tables.functions(pair[0]) == tables.functions(pair[1])


def test_a_stack_ends_at_a_frame_whose_stack_is_known() -> None:
    tables = Tables()
    outer = sys._getframe()
    whole = tables.interner.stack(outer, None, 0)

    def inner(anchor: FrameType | None, known: int) -> int:
        return tables.interner.stack(sys._getframe(), anchor, known)

    number = inner(outer, whole)
    assert tables.functions(number)[:-1] == tables.functions(whole)
    assert tables.functions(number)[-1][0] == "inner"
    assert [name for name, *_ in tables.functions(inner(outer, 0))] == ["inner"]


def test_a_stack_without_frames_is_none() -> None:
    tables = Tables()
    assert tables.interner.stack(None, None, 0) == 0 and tables.sink.records == []


def test_frames_of_the_recorder_are_left_out_of_the_stack() -> None:
    tables, anchor = Tables(), sys._getframe()
    source = "def ours():\n    return frame()\nfound = ours()\n"
    inner = run_in(f"{OWN_CODE}capture/made_up.py", source, frame=here)
    assert tables.interner.stack(inner, anchor, 0) == tables.interner.stack(inner, anchor, 0)
    assert "ours" not in [name for name, *_ in tables.functions(tables.interner.stack(inner, anchor, 0))]
    assert not any(text.text.startswith(OWN_CODE) for text in tables.sink.of(r.TEXT))


def test_frames_of_libraries_are_not_the_user_s() -> None:
    tables = Tables()
    cases = {
        torch.__file__: False, json.__file__: False, "<string>": False, "<frozen importlib>": False,
        f"{OWN_CODE[:-1]}_training/train.py": True, "/home/me/train.py": True,
    }  # fmt: skip
    source = "def f():\n    return frame()\nfound = f()\n"
    for file, is_user in cases.items():
        number = tables.interner.stack(run_in(file, source, frame=here), sys._getframe(), 0)
        assert tables.functions(number)[-1] == ("f", 2, is_user), file


def test_of_a_deep_recursion_the_innermost_frames_are_kept() -> None:
    tables, anchor = Tables(), sys._getframe()

    def down(n: int) -> int:
        return down(n - 1) if n else tables.interner.stack(sys._getframe(), anchor, 0)

    assert len(tables.functions(down(100))) == 101
    deep = tables.functions(down(400))
    assert len(deep) == 256 and {name for name, *_ in deep} == {"down"}


def test_code_that_is_gone_gives_its_id_to_no_other() -> None:
    """Stacks are known by the id of code: the interner keeps it alive for the step."""
    tables, lines = Tables(), []
    for line in range(1, 30):
        source = "\n" * line + "def f():\n    return frame()\nfound = f()\n"
        number = tables.interner.stack(run_in("/home/me/train.py", source, frame=here), sys._getframe(), 0)
        lines.append(tables.functions(number)[-1][1])
    assert lines == [line + 2 for line in range(1, 30)]
