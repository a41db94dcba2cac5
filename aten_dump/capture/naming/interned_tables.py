"""Tables of what repeats: each text, op, source frame and stack goes to the sink once per step."""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch

from ...store.records import FRAME, OP, STACK, TEXT
from ...store.sink import Emit
from ..torch_internals.fx_nodes import TracedFrame
from .call_name import CallName

OWN_CODE: Final = str(Path(__file__).resolve().parents[2]) + os.sep  # files below count as the recorder's own
_MAX_DEPTH: Final = 256  # frames of a stack that are looked at


def _library_roots() -> tuple[str, ...]:
    roots = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    roots.update((str(Path(torch.__file__).parent), OWN_CODE, "<frozen", "<string>", "<__array_function__"))
    return tuple(roots)


_LIBRARY: Final = _library_roots()


class Interner:
    """Interns texts, ops and stacks of one step, and emits each when it is first seen."""

    __slots__ = ("_codes", "_emit", "_frames", "_ops", "_stacks", "_texts", "_traced", "_users")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._texts: dict[str, int] = {"": 0}
        self._ops: dict[tuple[int, CallName], int] = {}
        self._frames: dict[tuple[object, object], int] = {}
        self._stacks: dict[tuple[int, int, int], int] = {}
        self._traced: dict[tuple[int, TracedFrame], int] = {}
        self._users: dict[str, bool] = {}
        self._codes: list[CodeType] = []  # keeps code objects, and so their ids, alive for the step

    def text(self, text: str) -> int:
        """Return the id of `text`; 0 for the empty text."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = len(self._texts)
            self._emit((TEXT, known, text))  # a `Text`: made as such it takes longer, as do those below
        return known

    def op(self, kind: int, name: CallName, arguments: tuple[str, ...] = ()) -> int:
        """Return the id of what a call calls; see `records.Op`."""
        key = (kind, name)
        known = self._ops.get(key)
        if known is None:
            known = self._ops[key] = len(self._ops) + 1
            self._emit((OP, known, kind, name.op, name.prefix, name.api, list(arguments)))
        return known

    def stack(self, frame: FrameType | None, anchor: FrameType | None, anchor_stack: int) -> int:
        """Return the id of the stack of `frame`, whose outer part from `anchor` on is known as `anchor_stack`."""
        path: list[FrameType] = []
        depth = 0
        parent = 0
        while frame is not None and depth < _MAX_DEPTH:
            if frame is anchor:
                parent = anchor_stack
                break
            path.append(frame)
            frame = frame.f_back
            depth += 1
        for inner in reversed(path):
            parent = self.stack_inside(parent, inner)
        return parent

    def stack_inside(self, parent: int, frame: FrameType) -> int:
        """Return the id of the stack of `frame`, the stack of whose caller is `parent`."""
        code = frame.f_code
        key = (parent, id(code), frame.f_lasti)
        known = self._stacks.get(key)
        if known is None:
            known = self._stacks[key] = self._new_stack(parent, frame, code)
        return known

    def traced_stack(self, frames: Iterable[TracedFrame], parent: int = 0) -> int:
        """Return the id of a stack of lines that a compiler has traced, the outermost first."""
        for frame in frames:
            key = (parent, frame)
            known = self._traced.get(key)
            if known is None:
                self._frames[key] = number = len(self._frames) + 1
                file, function = self.text(frame.file), self.text(frame.function)
                self._emit((FRAME, number, file, frame.line, function, self._is_user(frame.file)))
                known = self._traced[key] = self._add_stack(parent, number)
            parent = known
        return parent

    def _new_stack(self, parent: int, frame: FrameType, code: CodeType) -> int:
        self._codes.append(code)
        if code.co_filename.startswith(OWN_CODE):
            return parent  # the recorder's own frames are no part of the program
        line = frame.f_lineno or 0
        key = (id(code), line)
        known = self._frames.get(key)
        if known is None:
            known = self._frames[key] = len(self._frames) + 1
            function = getattr(code, "co_qualname", code.co_name)
            file = code.co_filename
            self._emit((FRAME, known, self.text(file), line, self.text(function), self._is_user(file)))
        return self._add_stack(parent, known)

    def _add_stack(self, parent: int, frame: int) -> int:
        number = len(self._stacks) + len(self._traced) + 1
        self._emit((STACK, number, parent, frame))
        return number

    def _is_user(self, file: str) -> bool:
        known = self._users.get(file)
        if known is None:
            known = self._users[file] = is_of_program(file)
        return known


def is_of_program(file: str) -> bool:
    """Return True if a source file is neither torch's nor the recorder's nor of an installed package."""
    return not file.startswith(_LIBRARY)
