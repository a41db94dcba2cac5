"""Calls that take no part in the flow of data.

Theory of operation
    Transport: what gloo runs inside a collective. Placing: ``set_``, which only says where memory from outside lies: a
    batch from a DataLoader's worker, the new storage of a ``copy.deepcopy``. Pickles: what ``all_gather_object`` and
    its like send, sizes and padded bytes of Python objects, which hold names of files, process ids and times; told by
    the stack. Buckets: what DDP's ranks tell each other of how gradients lie in them. Wrappers: ops on DTensors, where
    the ops that they run on this rank's parts are there, and waits: what a collective brought is its own result.
"""

from __future__ import annotations

from typing import Final

from ...dump import RankDump
from ...store import records
from ...store.argument_trees import collect
from ...store.op_names import WAIT_TENSOR, is_collective, read_op_name

_PLACES_MEMORY: Final = "aten::set_"
_WAITS: Final = frozenset((WAIT_TENSOR, "_c10d_functional::_wrap_tensor_autograd"))
# Files of torch's, and what is in the names of functions there.
_OBJECTS: Final = "torch/distributed/distributed_c10d.py", "object"
_BUCKETS: Final = "torch/nn/parallel/distributed.py", "_pre_forward"  # whose C++ makes them anew
_ATEN: Final = records.CALL_KINDS.index("aten")


def calls_apart(rank: RankDump, *, wrappers: bool) -> frozenset[int]:
    """Return the ids of calls that take no part; `wrappers` tells whether those on DTensors are among them."""
    tables = rank.tables
    found: set[int] = set()
    aten = {op.id for op in tables.ops.records() if op.call_kind == _ATEN}
    collectives = {op.id for op in tables.ops.records() if op.id in aten and is_collective(op.op)}
    placing = {op.id for op in tables.ops.records() if read_op_name(op.op).without_overload == _PLACES_MEMORY}
    pickling = _Pickling(rank)
    buckets = _stacks_of_buckets(rank)
    inside = {call.id for call in tables.calls if call.op in collectives}
    for call in tables.calls:
        if call.parent in inside:
            inside.add(call.id)
            found.add(call.id)
        elif call.op in placing or call.stack in buckets or pickling.runs(call.stack):
            found.add(call.id)
    if wrappers:
        found |= _waits(rank, collectives)
        found |= _wrapping(rank, aten, {call.parent for call in tables.calls if call.op in aten})
    return frozenset(found)


def _waits(rank: RankDump, collectives: set[int]) -> set[int]:
    """Return the ids of waits for collectives of this step: what they return is what the collective brought."""
    tables = rank.tables
    waits = {op.id for op in tables.ops.records() if op.op in _WAITS}
    brought: list[int] = []
    for call in tables.calls if waits else ():
        if call.op in collectives and call.op not in waits:
            collect(call.outputs, brought)
    known = {_memory_of(tables.values[number]) for number in brought}
    found: set[int] = set()
    for call in tables.calls if waits else ():
        ids: list[int] = []
        if call.op in waits:
            collect(call.outputs, ids)
            is_wrapper = tables.op(call.op).op != WAIT_TENSOR  # and others may be given a view of what was brought
            if is_wrapper or all(_memory_of(tables.values[number]) in known for number in ids):
                found.add(call.id)
    return found


def _memory_of(value: records.Value) -> tuple[int, int]:
    """Return a storage and its version; of what has no storage something of its own."""
    return (value.storage, value.version) if value.storage else (0, -value.id)


def _wrapping(rank: RankDump, aten: set[int], parents: set[int]) -> set[int]:
    """Return the ids of ops on tensors that are made of local ones, if they ran ops on these."""
    local = {value.id for value in rank.tables.values.records() if "local" in (value.extra or {})}
    found: set[int] = set()
    for call in rank.tables.calls if local else ():
        if call.op in aten and call.id in parents:
            ids: list[int] = []
            for tree in (*call.args, *(call.kwargs or {}).values(), call.outputs):
                collect(tree, ids)
            if not local.isdisjoint(ids):
                found.add(call.id)
    return found


def _stacks_of_buckets(rank: RankDump) -> set[int]:
    """Return the stacks whose innermost frame is that of DDP where it makes its buckets anew."""
    frames = _frames_in(rank, *_BUCKETS)
    return {stack.id for stack in rank.tables.stacks.records() if stack.frame in frames} if frames else set()


def _frames_in(rank: RankDump, file: str, function: str) -> set[int]:
    """Return the frames in a file of torch's, of functions with `function` in their names."""
    text = rank.tables.text
    return {
        frame.id
        for frame in rank.tables.frames.records()
        if function in text(frame.function) and text(frame.file).replace("\\", "/").endswith(file)
    }


class _Pickling:
    """Tells by the stack of a call whether it serves a collective of Python objects."""

    def __init__(self, rank: RankDump) -> None:
        self._stacks = rank.tables.stacks
        self._known: dict[int, bool] = {0: False}
        self._frames = _frames_in(rank, *_OBJECTS)

    def runs(self, stack: int) -> bool:
        """Return True if a function for objects is among the frames of a stack."""
        waiting = []
        while self._frames and stack not in self._known:
            waiting.append(stack)
            link = self._stacks.get(stack)
            if link is None or link.frame in self._frames:
                self._known[stack] = link is not None
                break
            stack = link.parent
        found = self._known.get(stack, False)
        for number in waiting:
            self._known[number] = found
        return found
