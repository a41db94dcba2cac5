"""What a program calls backward on, and the gradients that it starts from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeGuard

from ...dump import Call, RankDump, Value

_DEEPEST: Final = 3  # calls between the gradients of parts and the gradient that backward goes on with
_ASKS: Final = "torch.autograd.grad"
_STARTS: Final = {  # the argument with the gradients that backward starts from
    "torch.Tensor.backward": "gradient",
    "torch.autograd.backward": "grad_tensors",
    "torch.autograd.grad": "grad_outputs",
}


def roots_of(rank: RankDump) -> list[Value]:
    """Return the tensors that backward was called on; what `torch.func` wraps is seen in the calls beneath alone.

    A tensor from which a pass goes on with what another came to (``hidden.backward(detached.grad)``) is no root.
    """
    starts = starts_of(rank)
    roots = (root for call in _calls(rank) for root in _given(call) if _is_known(root))
    return [root for root in roots if root.id not in starts or not _is_gradient(starts[root.id])]


def _is_gradient(start: Value, deepest: int = _DEEPEST) -> bool:
    """Return True if backward made a tensor, or what it was put together from."""
    maker = None if start.producer is None else start.producer[0]
    if maker is None or maker.phase == "backward":
        return maker is not None
    given = [value for _, value in maker.input_values()]
    return bool(given) and deepest > 0 and all(_is_gradient(value, deepest - 1) for value in given)


def starts_of(rank: RankDump) -> dict[int, Value]:
    """Return the gradients that backward was given for tensors that it was called on, by the ids of these."""
    found: dict[int, Value] = {}
    for call in _calls(rank):
        starts = _as_list(call.inputs[1].get(_STARTS[call.op]))
        for root, start in zip(_given(call), starts, strict=False):
            if _is_known(root) and _is_known(start):
                found[root.id] = start
    return found


def gradients_asked(rank: RankDump) -> dict[int, list[Value]]:
    """Return the gradients that the program asked for with `torch.autograd.grad`, by the ids of what it asked of."""
    found: dict[int, list[Value]] = {}
    for call in _calls(rank):
        for root in _given(call) if call.op == _ASKS else ():
            if _is_known(root):
                found.setdefault(root.id, []).extend(value for _, value in call.output_values())
    return found


def _calls(rank: RankDump) -> Iterator[Call]:
    """Yield the calls of backward; that of `torch.autograd.grad` has a backward of its own, which starts nothing."""
    return (call for call in rank.calls.filter(kind="api") if call.op in _STARTS and call.forward is None)


def _given(call: Call) -> Sequence[object]:
    return _as_list(call.inputs[0][0]) if call.inputs[0] else ()


def _as_list(given: object) -> Sequence[object]:
    return given if isinstance(given, (list, tuple)) else [given]


def _is_known(value: object) -> TypeGuard[Value]:
    return isinstance(value, Value) and not is_wrapper(value)


def is_wrapper(value: Value) -> bool:
    """Return True if a tensor has neither memory of its own nor another tensor that it stands on."""
    return value.opaque and "local" not in value.extra
