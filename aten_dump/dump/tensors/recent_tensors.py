"""The tensors that were read last, for tools that read a value several times and do not write to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

KEPT_BYTES: Final = 16 << 20  # of all together; a tensor of more than a quarter of it is not kept


class RecentTensors:
    """Tensors by the id of their value; the oldest go first."""

    __slots__ = ("_kept", "_nbytes")

    def __init__(self) -> None:
        self._kept: dict[int, torch.Tensor] = {}
        self._nbytes = 0

    def get(self, value: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the tensor of a value, which is read if it is not here."""
        found = self._kept.get(value)
        if found is None:
            found = read()
            if found.layout is torch.strided:  # others have no memory that could be counted
                self._keep(value, found)
        return found

    def _keep(self, value: int, tensor: torch.Tensor) -> None:
        nbytes = _nbytes(tensor)
        if nbytes > KEPT_BYTES // 4:
            return
        self._kept[value] = tensor
        self._nbytes += nbytes
        while self._nbytes > KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._nbytes -= _nbytes(self._kept.pop(oldest))


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() + 1024  # what a tensor and its entry take besides
