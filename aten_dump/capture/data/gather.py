"""Elements on the host that do not lie in a row, where the C file beside this one was compiled (hatch_build.py).

They are copied piece by piece into memory that is used again, and read there while a processor's cache still has them.
Without the C file torch moves them: matrices that lie transposed by an op that goes through them block by block
(`transposed`), others into memory that is used again where they are not many, as new memory takes half as long again.
Of all others, and of tensors that are not known here, torch makes a copy: `tensor_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Final, TypeVar

import torch

from ...store.writing.host_bytes import HostBytes, bytes_at
from ..memory.geometry import Elements, byte_extent, has_no_gaps
from ..memory.scratch import KEPT_BYTES, give_back, take_scratch
from ..team_threads import team_threads
from ..torch_internals.addresses import address_of, is_copy_on_write
from .tensor_bytes import as_integers

try:
    from ._gather import copy as copy
    from ._gather import stretch
    from ._gather import use_team as use_team
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

# As many as `stretch` asks for, but where rows are very long. Torch is given all elements, as it is slow with parts.
_AT_ONCE_BYTES: Final = 1 << 19 if IS_COMPILED else KEPT_BYTES
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_LEAST_SIDE: Final = 8  # of a matrix; what is narrower, torch's copies move as fast
T = TypeVar("T")


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
    None where they are more than are copied at once. `lie_apart` says of which tensors. Call inside `quiet()`.
    """
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes > _AT_ONCE_BYTES:
        return None
    scratch = take_scratch(nbytes)
    try:
        if IS_COMPILED:
            GatheredBytes(tensor)(0, scratch.address, nbytes)
        else:
            bits = as_integers(tensor)
            scratch.tensor[:nbytes].view(bits.dtype).view(bits.shape).copy_(bits)
        return read(scratch.address)
    finally:
        give_back(scratch)


def transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements of a tensor in a row, in row-major order, if they lie as matrices do that were transposed:
    weights, keys, images in channels_last; None of others. `lie_apart` says of which tensors. Call inside `quiet()`.

    To shuffle the channels of images that lie in channels_last is to transpose a matrix for each pixel, and that op of
    torch's does so by vectors, in two thirds of the time that its copies take. It knows elements of four bytes.
    """
    shape, strides = tensor.shape, tensor.stride()
    if strides[-1] == 1 or tensor.element_size() != 4 or not tensor.numel() or not has_no_gaps(shape, strides):
        return None
    if is_copy_on_write(tensor):  # that op would end it
        return None
    wanted = [i for i, size in enumerate(shape) if size != 1]
    stored = sorted(wanted, key=lambda i: -strides[i])
    before = next(n for n, pair in enumerate(zip(wanted, stored, strict=True)) if pair[0] != pair[1])
    wanted, stored = wanted[before:], stored[before:]
    cut = wanted.index(stored[0])
    if stored != wanted[cut:] + wanted[:cut]:
        return None
    rows, columns = prod(shape[i] for i in wanted[cut:]), prod(shape[i] for i in wanted[:cut])
    if min(rows, columns) < _LEAST_SIDE:
        return None
    one, pixels = rows * columns, tensor.numel() // (rows * columns)
    images = tensor.view(torch.float32).as_strided((1, one, pixels, 1), (tensor.numel(), 1, one, one))
    return torch.native_channel_shuffle(images, rows).as_strided((tensor.numel(),), (1,))
