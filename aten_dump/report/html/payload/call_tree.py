"""The section ``tree``: of every call its name, place in the tree, module, source, times and forward call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....dump import CompiledKernel, RankDump
from ....dump.index.tables import Tables
from ....store.records import CALL_KINDS, PHASES
from .columns import Integers, Interned, Section

_NS_PER_US: Final = 1000
_DURATION_DIGITS: Final = 5  # as many as are shown


def tree_section(rank: RankDump) -> bytes:
    """Return the section of a step and rank. Calls go by position, which is the order in which they began."""
    section = Section()
    tables = rank.tables
    calls = tables.calls
    ops, op = np.unique(calls.column("op"), return_inverse=True)
    section.add_json("ops", [_op(tables, number) for number in ops.tolist()])
    kernels = ((at, rank.kernels.of(number)) for at, number in enumerate(ops.tolist()))
    section.add_json("kernels", {at: _computed(kernel) for at, kernel in kernels if kernel is not None})
    section.add_integers("op", op)
    section.add_integers("number", _numbers(tables, ops, op))
    for name in ("phase", "repeat", "thread"):
        section.add_integers(name, calls.column(name))
    modules, module = np.unique(calls.column("module"), return_inverse=True)
    section.add_json("modules", [tables.text(number) for number in modules.tolist()])
    section.add_integers("module", module)
    _add_relations(section, rank)
    _add_times(section, tables)
    _add_sources(section, tables)
    return section.pack()


def _op(tables: Tables, number: int) -> list[Any]:
    """Return head of the call's name, full name, kind, names of the arguments."""
    op = tables.op(number)
    return [tables.call_head(number), op.op, CALL_KINDS[op.call_kind], op.arguments]


def _computed(kernel: CompiledKernel) -> dict[str, Any]:
    """Return what a kernel computes: its graph, and of each node the name, op, what it reads and makes, and source."""
    nodes = []
    for node in kernel.nodes:
        made = "" if node.shape is None else f"{node.dtype}[{', '.join(map(str, node.shape))}]"
        frame = next((frame for frame in node.stack if frame.user), None)
        source = "" if frame is None else f"{frame.file}:{frame.line} in {frame.function}"
        nodes.append([node.name, node.op, ", ".join(node.reads), made, source])
    return {"graph": kernel.graph, "nodes": nodes}


def _numbers(tables: Tables, ops: Integers, op: Integers) -> Integers:
    """Return the n of each call as difference from that of the last call with its head and phase, less one."""
    heads: Interned[str] = Interned()
    head = np.array([heads.number(tables.call_head(number)) for number in ops.tolist()], np.int64)[op]
    key = head * len(PHASES) + tables.calls.column("phase")
    order = np.argsort(key, kind="stable")
    n = tables.calls.column("n")[order]
    first = np.diff(key[order], prepend=-1) != 0
    before = np.where(first, -1, np.roll(n, 1))
    found = np.empty(len(n), np.int64)
    found[order] = n - before - 1
    return found


def _add_relations(section: Section, rank: RankDump) -> None:
    calls = rank.tables.calls
    ids = calls.column("id")
    here = np.arange(len(ids))
    parent = positions_of(ids, calls.column("parent"))
    section.add_integers("parent", np.where(parent < 0, 0, here - parent))
    section.add_integers("forward", positions_of(ids, _forward_ids(rank)), delta=True)
    section.add_integers("id", ids - here, delta=True)
    unfinished = rank.tables.unfinished
    section.add_json("unfinished", positions_of(ids, np.array(sorted(unfinished), np.int64)).tolist())


def _forward_ids(rank: RankDump) -> Integers:
    """Return the id of the forward call that each call belongs to, 0 for none."""
    calls = rank.tables.calls
    forward = calls.column("forward")
    lacking = np.flatnonzero((forward == 0) & (calls.column("phase") == PHASES.index("recompute")))
    if len(lacking):
        forward = forward.copy()
        originals, ids = rank.links.originals, calls.column("id")[lacking]
        forward[lacking] = [originals.get(id, 0) for id in ids.tolist()]
    return forward


def positions_of(ids: Integers, wanted: Integers) -> Integers:
    """Return the position of each id in ascending `ids`, -1 where it is not there."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    found = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[found] == wanted, found, -1)


def _add_times(section: Section, tables: Tables) -> None:
    start = tables.calls.column("start_ns") // _NS_PER_US
    section.add_integers("start_us", start, delta=True)
    duration = np.maximum(tables.calls.column("duration_ns"), 0)
    size = np.log10(np.maximum(duration, 1)).astype(np.int64) + 1
    exponent = np.maximum(size - _DURATION_DIGITS, 0)
    unit = 10**exponent
    section.add_integers("duration.digits", (duration + unit // 2) // unit)
    section.add_integers("duration.exponent", exponent)


def _add_sources(section: Section, tables: Tables) -> None:
    """Add the stacks that calls name, as chains of frames, outermost last."""
    stacks, stack = np.unique(tables.calls.column("stack"), return_inverse=True)
    chains: Interned[tuple[int, int]] = Interned((-1, -1))  # (number of the caller's chain, frame)
    frames: Interned[tuple[int, int, int, int]] = Interned()
    texts: Interned[str] = Interned()
    known = [_chain(tables, number, chains, frames, texts) for number in stacks.tolist()]
    section.add_integers("stack", np.array(known, np.int64)[stack])
    section.add_integers("chain.parent", [parent for parent, _ in chains.items])
    section.add_integers("chain.frame", [frame for _, frame in chains.items])
    for at, name in enumerate(("file", "line", "function", "user")):
        section.add_integers(f"frame.{name}", [frame[at] for frame in frames.items])
    section.add_json("texts", texts.items)


def _chain(
    tables: Tables,
    number: int,
    chains: Interned[tuple[int, int]],
    frames: Interned[tuple[int, int, int, int]],
    texts: Interned[str],
) -> int:
    """Return the number of the chain of a stack, 0 for none."""
    chain = 0
    for frame in reversed(list(_frames(tables, number))):
        key = (texts.number(frame[0]), frame[1], texts.number(frame[2]), int(frame[3]))
        chain = chains.number((chain, frames.number(key)))
    return chain


def _frames(tables: Tables, number: int) -> Iterator[tuple[str, int, str, bool]]:
    for frame in tables.stack(number):
        yield frame.file, frame.line, frame.function, frame.user
