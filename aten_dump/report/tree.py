"""The tree of calls, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..dump import Call, Calls, RankDump
from .units import argument, duration_text


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A call at a depth of the tree; `matched` is False for one shown only as it leads to another."""

    depth: int
    call: Call
    matched: bool


def tree_lines(rank: RankDump, matched: Calls | None = None, max_depth: int | None = None) -> Iterator[TreeLine]:
    """Yield the calls of a step and rank, each under the one it ran in.

    Args:
        rank: where to look.
        matched: only these, and the calls they ran in; None is all.
        max_depth: leave out calls deeper than this; the roots are at depth 1.
    """
    ids = None if matched is None else {call.id for call in matched}
    shown = None if ids is None else _with_outer(rank, ids)
    waiting = [(1, call) for call in reversed(rank.roots)]
    while waiting:
        depth, call = waiting.pop()
        if shown is not None and call.id not in shown:
            continue
        yield TreeLine(depth, call, ids is None or call.id in ids)
        if max_depth is None or depth < max_depth:
            waiting += [(depth + 1, child) for child in reversed(call.children)]


def _with_outer(rank: RankDump, ids: set[int]) -> set[int]:
    """Return ids and those of the calls around them."""
    found: set[int] = set()
    for id in ids:
        call = rank.find(id)
        while call is not None and call.id not in found:
            found.add(call.id)
            call = rank.find(call.parent_id)
    return found


def call_line(line: TreeLine) -> str:
    """Return a call as one line: name, inputs, outputs, duration, and what is unusual about it."""
    call = line.call
    parts = ["  " * (line.depth - 1) + call.name, signature(call)]
    if call.mutated:
        parts.append(f"writes {', '.join(call.mutated)}")
    parts += filter(None, [duration_text(call)])
    if call.error:
        parts.append(f"raised {call.error}")
    return "  ".join(parts)


def signature(call: Call) -> str:
    """Return ``"(f32[8, 4], f32[3, 4], alpha=2) -> f32[8, 3]"``."""
    args, kwargs = call.inputs
    texts = [argument(arg) for arg in args] + [f"{name}={argument(arg)}" for name, arg in kwargs.items()]
    return f"({', '.join(texts)}) -> {argument(call.outputs)}"
