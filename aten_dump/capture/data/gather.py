"""Elements on the host that do not lie in a row, where the C file beside this one was compiled (hatch_build.py).

They are copied piece by piece into memory that is used again, and read there while a processor's cache still has them.
Without the C file, and of tensors that are not known here, torch makes a copy: `tensor_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import torch

from ...store.writing.host_bytes import HostBytes, bytes_at
from ..memory.geometry import Elements, byte_extent
from ..team_threads import team_threads
from ..torch_internals.addresses import address_of

try:
    from ._gather import copy as copy
    from ._gather import stretch
    from ._gather import use_team as use_team
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

_AT_ONCE_BYTES: Final = 1 << 19  # as many as `stretch` asks for, but where rows are very long
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
KEPT_BYTES: Final = 1 << 22  # of a `Scratch` that is kept
MOST_KEPT: Final = 4
_ALIGNMENT: Final = 64
T = TypeVar("T")


class Scratch:
    """Memory that is used at once and needed no more; it is taken again, as new memory costs more than to write it."""

    __slots__ = ("address", "nbytes", "view")

    def __init__(self, nbytes: int) -> None:
        """Ask for so many bytes."""
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        self.nbytes = nbytes
        self.address = memory.ctypes.data + start
        self.view = memory.data[start : start + nbytes]


_kept: Final[list[Scratch]] = []  # what is not in use


def take_scratch(nbytes: int) -> Scratch:
    """Return memory of so many bytes at least, of any content."""
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


def can_gather(tensor: torch.Tensor) -> bool:
    """Return True if elements lie apart and the C file can copy them. Call inside `quiet()`."""
    return IS_COMPILED and lie_apart(tensor)


def lie_apart(tensor: torch.Tensor) -> bool:
    """Return True if the elements of a tensor do not lie in a row, and are known here. Call inside `quiet()`."""
    return (
        not tensor.is_contiguous()
        and tensor.is_cpu
        and type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_conj()
        and byte_extent(tensor)[1] <= tensor.untyped_storage().nbytes()  # which may have been shrunk under it
    )


class GatheredBytes(HostBytes):
    """A `Fill` with the elements of a tensor in row-major order; `can_gather` says of which."""

    __slots__ = ("_item", "_shape", "_strides")

    def __init__(self, tensor: torch.Tensor, seconds: dict[str, float] | None = None) -> None:
        """Take the elements, which are copied when they are asked for.

        Args:
            tensor: whose elements.
            seconds: to whose "copy" the time of copying is added.
        """
        super().__init__(address_of(tensor), tensor, seconds)
        self._item = tensor.element_size()
        self._shape = tuple(tensor.shape)
        self._strides = tensor.stride()

    def pieces(self, nbytes: int) -> Iterator[memoryview]:
        """Yield the first so many bytes; each piece is there until the next one is asked for."""
        step = stretch(self._item, self._shape, self._strides) * self._item
        scratch = take_scratch(min(step, nbytes))
        try:
            for offset in range(0, nbytes, step):
                size = min(step, nbytes - offset)
                self._copy_on(1, offset, scratch.address, size)  # what another thread copies is in another's cache
                yield scratch.view[:size]
        finally:
            give_back(scratch)

    def _copy(self, offset: int, address: int, nbytes: int) -> None:
        self._copy_on(team_threads(nbytes), offset, address, nbytes)

    def _copy_on(self, threads: int, offset: int, address: int, nbytes: int) -> None:
        item = self._item
        first, past = offset // item, (offset + nbytes) // item
        copy(self._address, item, self._shape, self._strides, first, past, address, threads)


def bytes_of_elements(elements: Elements) -> bytes:
    """Return a copy of elements in host memory that do not lie in a row, in row-major order; needs the C file."""
    dtype, _, nbytes, address, (shape, strides) = elements
    scratch = take_scratch(nbytes)
    try:
        copy(address, dtype.itemsize, shape, strides, 0, nbytes // dtype.itemsize, scratch.address, 1)
        return bytes_at(scratch.address, nbytes)
    finally:
        give_back(scratch)


def read_at_once(tensor: torch.Tensor, read: Callable[[int], T]) -> T | None:
    """Return what `read` makes of the address of a tensor's elements, in row-major order and there until it returns;
    None where they are more than are copied at once. `can_gather` says of which tensors. Call inside `quiet()`.
    """
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes > _AT_ONCE_BYTES:
        return None
    scratch = take_scratch(nbytes)
    try:
        GatheredBytes(tensor)(0, scratch.address, nbytes)
        return read(scratch.address)
    finally:
        give_back(scratch)
