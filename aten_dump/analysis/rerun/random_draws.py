"""Runs ops that draw random numbers, from a generator in the state that was recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ...errors import ReplayError
from .shared_memory import Surroundings

_drawing: Final = threading.Lock()  # held while the process's own generators are in a state of ours


def draw(
    op: Callable[[], Any], given: torch.Generator | None, state: tuple[str, bytes] | None, around: Surroundings
) -> tuple[Any, bool]:
    """Run an op that may draw random numbers, and tell whether it did."""
    device = around.device
    kind = "cpu" if state is None else str(state[0]).partition(":")[0]
    if kind != device.type:
        raise ReplayError(f"it draws random numbers on {kind}: replay it there, {device.type} draws others")
    with _generator(given, device) as generator:
        if state is not None:
            generator.set_state(torch.frombuffer(bytearray(state[1]), dtype=torch.uint8))
        before = generator.get_state()
        result = op()
        drew = not torch.equal(before, generator.get_state())
    if drew and state is None:
        raise ReplayError("it draws random numbers, and the state of the generator was not recorded")
    if drew and around.cast:
        raise ReplayError("it draws random numbers, which depend on the dtype: replay it in the recorded one")
    return result, drew


@contextmanager
def _generator(given: torch.Generator | None, device: torch.device) -> Iterator[torch.Generator]:
    """Give the generator that an op will draw from; the process's own, to one thread at a time, is put back."""
    if given is not None:
        yield given
        return
    if device.type == "cpu":
        default = torch.default_generator
    else:
        module = torch.get_device_module(device)
        default = module.default_generators[device.index or 0]
    with _drawing:
        saved = default.get_state()
        try:
            yield default
        finally:
            default.set_state(saved)
