"""Ops of an evaluation that are run on a device: products, convolutions and attention, which take its time.

Theory of operation
    The tensors of an evaluation stay on the CPU, where they share memory as they were recorded. An op that computes
    more than it reads is given copies on the device, and what it returns is copied back: one op's tensors are on the
    device at a time. Which ops these are torch's counter of operations knows. What the device cannot run in float64,
    or has no memory for, the CPU runs. The device belongs to what a user asks of `compare`, which sets it for all that
    runs under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import torch

from ...torch_names import tree_leaves, tree_map
from ..given_device import usable_device

_CPU: Final = torch.device("cpu")
_FEWEST: Final = 1 << 14  # elements that an op is given; below, the copies take longer than the op

_device: ContextVar[torch.device] = ContextVar("evaluation_device", default=_CPU)
_lacking: Final[set[tuple[str, str]]] = set()  # devices, and ops that they could not run


@contextmanager
def evaluating_on(name: str) -> Iterator[None]:
    """Run heavy ops of evaluations on a device within a block.

    Raises:
        ReplayError: there is none of that name here; the message says which part is missing.
    """
    token = _device.set(usable_device(name))
    try:
        yield
    finally:
        _device.reset(token)


def on_device(op: Any) -> Callable[..., Any] | None:
    """Return what runs an op on the device of the evaluation, where it has one and the op is worth it."""
    device = _device.get()
    if device == _CPU or not _is_heavy(op) or (str(device), op.name()) in _lacking:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if sum(tensor.numel() for tensor in given) < _FEWEST:
            return op(*args, **kwargs)
        try:
            args_there, kwargs_there = _moved((args, kwargs), device)
            return _moved(op(*args_there, **kwargs_there), _CPU)
        except RuntimeError:  # no kernel, no float64, or no memory
            _lacking.add((str(device), op.name()))
            return op(*args, **kwargs)

    return run


def _moved(tree: Any, device: torch.device) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, tree)


@cache
def _is_heavy(op: Any) -> bool:
    from torch.utils.flop_counter import flop_registry  # imports what most comparisons do not need

    packet = getattr(op, "overloadpacket", None)
    return packet in flop_registry and not op._schema.is_mutable
