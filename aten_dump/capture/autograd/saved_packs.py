"""``saved_tensors="hooks"``: what each call saves for backward, and which node fetches it, as hooks see it.

Theory of operation
    The recorder's hooks are on torch's stack of saved-tensor hooks only while a Python-level call runs. So the
    program's own hooks come and go in their order, and `torch.func`, which refuses to run under hooks, never meets any.
    Calls that run the program's code are left out (`backward`, and calls that are passed a function).

    A node's attributes hold what the hook returned, which shows exactly what it saved. An autograd function in C++ has
    no such attributes: it saved what was packed while its node was the newest one of the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ...errors import CaptureError
from ...store.records import FETCHED, NOTE, PACKED, Fetched, Note, Packed
from ...torch_names import HigherOrderOperator
from ..interrupts import runs_program
from ..step.open_calls import OpenCall
from ..step.step import Step
from ..torch_internals.engine import get_sequence_nr, len_dispatch_stack, running_node, top_saved_hooks
from ..torch_internals.mode_stack import is_detached_in_sight
from ..torch_internals.packed_tensors import Hooks, PackedTensor, may_push_hooks, pop_hooks, push_hooks
from ..values.value_ids import ValueIds
from .node_tags import NodeTags

_RUN_THE_PROGRAM: Final = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


class _Pack:
    """The pack hook, with the program's hooks around it."""

    __slots__ = ("around", "packs")

    def __init__(self, packs: SavedPacks, around: Hooks | None) -> None:
        self.packs = packs
        self.around = around

    @runs_program
    def __call__(self, tensor: torch.Tensor) -> PackedTensor:
        """Run by autograd with a tensor that is saved."""
        packs = self.packs
        packed = PackedTensor(tensor, self.around)
        packs.note(packed, tensor)
        return packed


class SavedPacks:
    """What is saved in one step, by hooks."""

    def __init__(self, step: Step, values: ValueIds, tags: NodeTags) -> None:
        self.step = step
        self._values = values
        self._tags = tags
        self._pack = _Pack(self, None)
        self._unpack = self._fetch  # one object, so that it is known again
        self._last = 0  # id of the last Packed record
        self._loose: dict[tuple[int, int], list[int]] = {}  # value ids by thread and number of the newest node
        self._agreed = 0
        self._is_closed = False

    # -- while a Python-level call runs

    def seen_in(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `func` with our hooks in place; `func` where they must not be."""
        if isinstance(func, HigherOrderOperator) or any(func is one for one in _RUN_THE_PROGRAM):
            return func

        @runs_program
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._push():
                return func(*args, **kwargs)
            try:
                return func(*args, **kwargs)
            finally:
                pop_hooks()

        return run

    def _push(self) -> bool:
        if not may_push_hooks():
            return False
        around: Hooks | None = top_saved_hooks(True)
        if around is not None and isinstance(around[0], _Pack) and around[0].packs is self:
            return False
        push_hooks(self._pack if around is None else _Pack(self, around), self._unpack)
        return True

    # -- what the hooks see

    def note(self, packed: PackedTensor, tensor: torch.Tensor) -> None:
        """Record that a tensor was saved."""
        thread = self.step.here.state
        if self._is_closed or not self.step.is_on or thread.own.depth or not len_dispatch_stack():
            return
        try:
            with thread.own:
                if tensor.dim() or self._values.storages.knows(tensor):  # as in the list that nodes give
                    packed.value = self._values.value_of(tensor, False)
                packed.owner = thread.stack[-1] if thread.stack else None
                self._loose.setdefault((thread.number, get_sequence_nr() - 1), []).append(packed.value)
                packed.id = self._last = self._last + 1
                call = 0 if packed.owner is None else packed.owner.visible
                self.step.emit(Packed(PACKED, packed.id, call, packed.value, self.step.now_ns()))
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.step.failed(error)

    @runs_program
    def _fetch(self, packed: PackedTensor) -> torch.Tensor:
        tensor = packed.unpack()
        thread = self.step.here.state
        if packed.id and not self._is_closed and self.step.is_on and not thread.own.depth and len_dispatch_stack():
            try:
                with thread.own:
                    if not packed.is_output and is_detached_in_sight(tensor):
                        thread.unpacked = id(tensor)  # autograd detaches it next: without hooks, outputs alone
                    self._note_fetched(packed)
            except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
                self.step.failed(error)
        return tensor

    def _note_fetched(self, packed: PackedTensor) -> None:
        node = running_node()
        tag = None if node is None else self._tags.of(node)
        call = 0 if tag is None or not tag.has_call() or tag.call is None else tag.call.visible
        self.step.emit(Fetched(FETCHED, packed.id, call, self.step.now_ns()))
        if tag is None or tag.owner is None or packed.owner is None:
            return
        if not _is_within(packed.owner, tag.owner):
            raise CaptureError(
                f"node {tag.name.op} fetched a tensor that {packed.owner.name.op} had saved, but was tied to "
                f"{tag.owner.name.op}; please report this, the program is not at fault"
            )
        self._agreed += 1

    # -- what nodes ask

    def saved_by(self, number: int, thread: int, packed: list[PackedTensor]) -> list[int]:
        """Return the values that a node saved.

        Args:
            number: sequence number of the node.
            thread: number of the thread that made it.
            packed: what its attributes hold; empty for a function in C++, which has none.
        """
        loose = self._loose.pop((thread, number), [])
        return [value for value in ([one.value for one in packed] if packed else loose) if value]

    def close(self) -> None:
        """End the step: note how often both ties agreed."""
        self._is_closed = True
        self._loose.clear()
        if self._agreed:
            message = "saved tensors were fetched by nodes of the very calls that had saved them, as the nodes say"
            self.step.emit(Note(NOTE, "saved_tensors", message, self._agreed))


def _is_within(call: OpenCall | None, outer: OpenCall) -> bool:
    """Return True if a call is another one or runs inside it."""
    while call is not None and call is not outer:
        call = call.parent
    return call is outer
