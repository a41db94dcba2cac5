"""Keeps the state of the random generator that an op is about to draw from, so that the op can be replayed.

Theory of operation
    Reading a generator's state does not move its stream. The op draws from the generator it was given, else from the
    default one of its device. The state's bytes become a blob (5056 for the Mersenne Twister of the CPU, 16, seed and
    offset, for a Philox generator of an accelerator); equal states are stored once. It is read only for ops that may
    draw (`OpPlan.random`) and only where tensor data is kept: about 1 us per such op on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import xxhash

from ...store.records import RANDOM, Random
from ...store.sink import Sink
from ...store.writing.host_bytes import HostBytes, bytes_at
from ..naming.interned_tables import Interner
from ..torch_internals.addresses import address_of
from ..torch_internals.quiet import quiet
from ..values.containers import tensors_in


class RandomStates:
    """The generator states of one step."""

    __slots__ = ("_blobs", "_interner", "_sink", "wanted")

    def __init__(self, wanted: bool, sink: Sink, interner: Interner) -> None:
        self.wanted = wanted
        self._sink = sink
        self._interner = interner
        self._blobs: dict[bytes, int] = {}  # digest of a state -> blob

    def keep(self, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the state that the op of `call`, about to run with these arguments, draws from."""
        device = _device_of(args, kwargs)
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)]
        with quiet():
            state = _state_of(given[0]) if given else _default_state(device)
        if given:
            device = given[0].device
        blob = 0 if state is None else self._store(state)
        self._sink.emit(Random(RANDOM, call, self._interner.text(str(device)), blob))

    def _store(self, state: torch.Tensor) -> int:
        raw = bytes_at(address_of(state), state.numel())
        digest = xxhash.xxh3_128_digest(raw)
        blob = self._blobs.get(digest)
        if blob is None:
            blob = self._blobs[digest] = self._sink.store("U8", [len(raw)], len(raw), HostBytes.of(raw))
        return blob


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Return the device an op runs on: the one it was given, else that of its first tensor."""
    told = kwargs.get("device")
    if told is not None:
        device = torch.device(told)
        number: int | None = device.index
        if number is None and device.type != "cpu":  # the current one of that type
            with quiet():
                device = torch.empty(0, device=device).device
        return device
    return next((tensor.device for _, tensor in tensors_in(args)), torch.device("cpu"))


def _state_of(generator: torch.Generator) -> torch.Tensor | None:
    try:
        return generator.get_state()
    except RuntimeError:  # a generator without a state to read, or one that a graph capture owns
        return None


def _default_state(device: torch.device) -> torch.Tensor | None:
    if device.type == "cpu":
        return torch.default_generator.get_state()
    try:
        module = torch.get_device_module(device)
        state: torch.Tensor = module.get_rng_state() if device.index is None else module.get_rng_state(device.index)
    except (RuntimeError, AttributeError, TypeError):  # no generator there (meta), or a graph capture owns it
        return None
    return state
