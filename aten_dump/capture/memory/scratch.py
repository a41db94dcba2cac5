"""Memory for what is used at once and needed no more: it is taken again, as new memory costs more than to write it."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

KEPT_BYTES: Final = 1 << 22
MOST_KEPT: Final = 4
_ALIGNMENT: Final = 64


class Scratch:
    """A piece of memory, as address, bytes and tensor of uint8."""

    __slots__ = ("address", "nbytes", "tensor", "view")

    def __init__(self, nbytes: int) -> None:
        """Ask for so many bytes."""
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        self.nbytes = nbytes
        self.address = memory.ctypes.data + start
        self.view = memory.data[start : start + nbytes]
        self.tensor = torch.from_numpy(memory[start : start + nbytes])


_kept: Final[list[Scratch]] = []  # what is not in use


def take_scratch(nbytes: int) -> Scratch:
    """Return memory of so many bytes at least, of any content. Call inside `quiet()`."""
    if nbytes > KEPT_BYTES:
        return Scratch(nbytes)
    try:
        return _kept.pop()
    except IndexError:
        return Scratch(KEPT_BYTES)


def give_back(scratch: Scratch) -> None:
    """Leave memory to the next who asks for some."""
    if scratch.nbytes == KEPT_BYTES and len(_kept) < MOST_KEPT:
        _kept.append(scratch)
