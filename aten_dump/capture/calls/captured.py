"""What a graph of a device reads and writes: noted of the ops that are captured, for the calls that replay it.

A replay is given nothing and returns nothing: it reads the memory that the captured ops read, and writes what they
wrote. Tensors are held weakly: the graph's memory is freed when it would be without a dump.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch

from ..memory.storages import storage_of
from ..values.containers import tensors_in


class CapturedGraph:
    """The tensors of one capture."""

    __slots__ = ("_made", "_read", "_tensors")

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], ref[torch.Tensor]] = {}  # by storage and geometry
        self._read: set[int] = set()  # storages that were there before
        self._made: set[int] = set()  # storages that the captured ops allocate

    def saw(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note the tensors of an op that was captured."""
        for _, tensor in tensors_in((args, kwargs)):
            address = self._add(tensor)
            if address not in self._made:
                self._read.add(address)
        for _, tensor in tensors_in(result):
            address = self._add(tensor)
            if address not in self._read:
                self._made.add(address)

    def _add(self, tensor: torch.Tensor) -> int:
        """Note a tensor and return the address of its storage, 0 if it has none."""
        storage = storage_of(tensor)
        if storage is None:
            return 0
        address: int = storage._cdata
        place = (address, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._tensors.get(place)
        if known is None or known() is None:
            self._tensors[place] = ref(tensor)
        return address

    def inputs(self) -> list[torch.Tensor]:
        """Return the tensors that a replay reads, of those that are there."""
        return self._alive(self._read)

    def outputs(self) -> list[torch.Tensor]:
        """Return the tensors that a replay makes, of those that are there; what else it writes is among its inputs."""
        return self._alive(self._made)

    def _alive(self, storages: set[int]) -> list[torch.Tensor]:
        return [
            tensor
            for (address, *_), known in self._tensors.items()
            if address in storages and (tensor := known()) is not None
        ]
