"""Which aten call made which autograd node, known by the numbers that autograd gives its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from ..step.threads import ThreadState
from ..torch_internals.engine import get_sequence_nr, is_grad_enabled

_TENSOR: Final = torch.Tensor


class SequenceClaims:
    """Which aten call made which autograd node, by thread and sequence number: each thread counts for itself."""

    __slots__ = ("_threads",)

    def __init__(self, threads: list[ThreadState]) -> None:
        self._threads = threads

    def claim(self, thread: ThreadState, call: int, now: int) -> int | None:
        """Give the nodes made since the thread's last call to `call`; return the number of the one it made itself.

        Args:
            thread: the running thread, of which `grad` is set to the present grad mode.
            call: the aten call that begins.
            now: what the thread's sequence counter says.
        """
        first = thread.claimed
        if now == first:
            return None
        if not thread.grad:  # it made none: it runs in a pack hook, or in a custom function's forward
            for number in range(max(first, thread.noted), now):
                thread.made_around[number] = call
                thread.made_before[number] = thread.last_call
            thread.noted = now
            return None
        thread.claimed = now
        for number in range(first, now):
            thread.made[number] = call
            thread.made_before.setdefault(number, thread.last_call)
        return now - 1

    def cloned(self, thread: ThreadState, call: int, before: int, number: int | None) -> None:
        """Note that an op has run as autograd runs it ahead of one in place: a clone, or a `detach` of what it saves.

        Args:
            thread: the running thread.
            call: the aten call that it was.
            before: the one before it on the thread.
            number: of the node that it made itself, None if it made none.
        """
        if before != thread.last_clone:
            thread.ahead.clear()
        thread.last_clone = call
        newest = thread.claimed - 1 if number is None else number - 1
        while thread.made.get(newest) == call:
            thread.ahead.append(newest)
            newest -= 1

    def claim_ahead(self, thread: ThreadState, before: int, call: int, args: tuple[Any, ...]) -> int | None:
        """Give an op that writes in place the nodes made ahead of it; return the newest's number, None without one.

        Where its backward needs what it is about to overwrite, autograd makes the node (of an op on lists one for each
        tensor), then clones those tensors, and the op comes last: the clones are seen first and have claimed the nodes.

        Args:
            thread: the running thread, whose sequence counter has not moved since its last call.
            before: the aten call before it on the thread.
            call: the op's.
            args: the op's, as they are before it runs.
        """
        if before != thread.last_clone or not thread.ahead or not is_grad_enabled():
            return None
        if not any(isinstance(arg, _TENSOR) and arg.requires_grad for arg in _items(args)):
            return None  # the op makes no node
        for number in thread.ahead:
            thread.made[number] = call
        return max(thread.ahead)

    def made_by(self, number: int, node: str, thread: ThreadState, own_from: int | None) -> int | None:
        """Return the aten call that made a node; None when it was made before the step, 0 when it is unknown.

        Args:
            number: sequence number of the node.
            node: the node's name. ``CopySlices`` is made after the in-place op on a view has run, so the next call
                claimed it.
            thread: the running thread.
            own_from: nodes of this number and greater are surely the thread's own; None if no node is.
        """
        own = thread.first <= number and (number < thread.claimed or number < get_sequence_nr())
        if len(self._threads) > 1 and not (own and own_from is not None and number >= own_from):
            makers = [one for one in self._threads if number in one.made]
            if own and makers not in ([], [thread]):
                return 0
            if not own:
                if len(makers) != 1:
                    return 0 if makers else None
                thread = makers[0]
        elif not own:
            return None
        if node == "CopySlices" or number not in thread.made:
            return thread.made_before.get(number, thread.last_call if own_from is not None else 0)
        return thread.made[number]

    def made_around(self, number: int, thread: ThreadState) -> int:
        """Return the first op in the forward of a custom function that has this node; 0 unknown."""
        return thread.made_around.get(number, 0)


def _items(args: tuple[Any, ...]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from arg
        else:
            yield arg
