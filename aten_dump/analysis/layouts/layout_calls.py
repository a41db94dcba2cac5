"""Calls that are there because of the parallel layout and compute nothing of the program.

Theory of operation
    Told from what was recorded. Collectives, by the namespace of the op. Ops inside an op on DTensors (or on
    results of collectives): the op around them is the program's, they are how it was done on this rank. What
    torch.distributed's own code runs, by the Python-level call around it (``Redistribute``, ``to_local``), by that of
    the forward call it belongs to, or by its stack: frames of torch.distributed before any of the user's or of a
    module. And buffers that are laid out by hooks of the backward pass, which have no stack of their own: they run
    under no autograd node.
"""

from __future__ import annotations

from typing import Final, Literal

from ...dump import Frame, RankDump
from ...store import records
from ...store.argument_trees import collect
from ...store.op_names import COLLECTIVE_NAMESPACES, read_op_name

LayoutKind = Literal["collective", "local op", "data movement", "mark"]

LAYOUT_TEXTS: Final[dict[LayoutKind, str]] = {
    "collective": "collectives",
    "local op": "ops on local tensors inside ops on DTensors",
    "data movement": "calls of torch.distributed that move data",
    "mark": "profiler marks",
}
_NAMESPACES: Final = COLLECTIVE_NAMESPACES | {"fsdp"}
_MOVES: Final = frozenset(
    f"aten::{name}"
    for name in (
        "empty.memory_format", "view", "as_strided", "split.Tensor", "split_with_sizes", "copy_", "cat", "slice.Tensor",
        "resize_", "_to_copy", "clone", "div_.Scalar", "div.Scalar", "mul_.Tensor", "set_.source_Storage",
    )
)  # fmt: skip
_BACKWARD: Final = records.PHASES.index("backward")
_PASSED: Final = (
    "torch/autograd/",
    "torch/utils/",
    "torch/_utils",
    "torch/overrides.py",
    "torch/_tensor.py",
    "torch/_dynamo/",
)


def layout_calls(rank: RankDump) -> dict[int, LayoutKind]:
    """Return the calls of a rank that only serve the layout, by id."""
    return _Classifier(rank).run()


class _Classifier:
    def __init__(self, rank: RankDump) -> None:
        self._tables = rank.tables
        self._known: dict[int, LayoutKind] = {}
        self._by_stack: dict[int, bool] = {}
        self._last: dict[int, records.Call] = {}  # op on DTensors that ran last, by thread
        self._made_of: dict[int, str] = {
            value.id: str(value.extra["class"])
            for value in self._tables.values.records()
            if value.extra and "local" in value.extra and "class" in value.extra
        }

    def run(self) -> dict[int, LayoutKind]:
        for call in self._tables.calls:
            kind = self._kind(call)
            if kind is not None:
                self._known[call.id] = kind
        return self._known

    def _kind(self, call: records.Call) -> LayoutKind | None:
        op = self._tables.op(call.op)
        if op.op.startswith("profiler::"):
            return "mark"
        if read_op_name(op.op).namespace in _NAMESPACES or op.op.startswith("torch.distributed.distributed_c10d."):
            return "collective"
        parent = self._find(call.parent)
        if op.op == "aten::add.Tensor" and call.phase == _BACKWARD and not self._is_aten(parent):
            return "local op" if self._runs_inside(call) else None  # adds up gradients, whatever node sent the last
        if parent is not None and parent.id in self._known and self._kind_name(parent) != "module":
            return self._known[parent.id]
        if parent is not None and self._is_aten(parent) and self._is_aten(call) and self._wraps(parent):
            return "local op"
        if self._is_aten(call) and self._runs_inside(call):
            return "local op"
        if op.op.startswith("torch.distributed.") and self._kind_name(call) in ("api", "node"):
            return "data movement"
        if self._kind_name(call) == "module":
            return None
        if self._belongs_to_layout(call) or self._stack_is_distributed(call.stack) or self._is_hook(call, parent):
            return "data movement"
        return None

    def _wraps(self, call: records.Call) -> bool:
        """Tell whether an op was given or returned tensors made of local ones."""
        ids: list[int] = []
        for tree in (*call.args, *(call.kwargs or {}).values(), call.outputs, *(call.written or ())[1::2]):
            collect(tree, ids)
        return any(number in self._made_of for number in ids)

    def _runs_inside(self, call: records.Call) -> bool:
        """Tell by time whether an op runs inside an op on DTensors: in sums of gradients it is not their parent."""
        last = self._last.get(call.thread)
        if last is not None and call.start_ns < last.start_ns + last.duration_ns:
            return True
        if self._wraps(call):
            self._last[call.thread] = call
        return False

    def _belongs_to_layout(self, call: records.Call) -> bool:
        forward = self._find(call.forward)
        if forward is None or forward.id == call.id:
            return False
        return self._tables.op(forward.op).op.startswith("torch.distributed.") and self._kind_name(forward) == "api"

    def _is_hook(self, call: records.Call, parent: records.Call | None) -> bool:
        """Tell whether an op that moves data ran in a backward pass, but in no node of it."""
        if parent is None or self._tables.op(call.op).op not in _MOVES:
            return False
        return self._tables.op(parent.op).op in ("torch.Tensor.backward", "torch.autograd.backward")

    def _stack_is_distributed(self, stack: int) -> bool:
        known = self._by_stack.get(stack)
        if known is None:
            known = self._by_stack[stack] = bool(stack) and _begins_distributed(self._tables.stack(stack))
        return known

    def _find(self, id: int) -> records.Call | None:
        position = self._tables.positions.get(id)
        return None if position is None else self._tables.calls[position]

    def _is_aten(self, call: records.Call | None) -> bool:
        return call is not None and self._kind_name(call) == "aten"

    def _kind_name(self, call: records.Call) -> str:
        return records.CALL_KINDS[self._tables.op(call.op).call_kind]


def _begins_distributed(stack: list[Frame]) -> bool:
    """Tell whether torch.distributed's code called, with only plumbing of torch's between."""
    for frame in stack:
        file = frame.file.replace("\\", "/")
        if "torch/distributed/" in file:
            return True
        if frame.user or not any(passed in file for passed in _PASSED):
            return False
    return False
