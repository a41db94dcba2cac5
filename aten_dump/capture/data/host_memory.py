"""Host memory that bytes of tensors are copied to."""

from __future__ import annotations

import ctypes
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from ..devices import device_in_use
from ..torch_internals.quiet import quiet

# Memory that was given out as an array, by its address, for as long as that lives.
_given_out: Final[WeakValueDictionary[int, torch.Tensor]] = WeakValueDictionary()


def host_tensor(nbytes: int) -> torch.Tensor:
    """Return host memory as a uint8 tensor; pinned where a device is in use, so that copies need not wait."""
    with quiet():
        if device_in_use() is not None:  # pinning would start one
            try:
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:  # no memory that may be pinned is left, or the device has no such thing
                pass
        return torch.empty(nbytes, dtype=torch.uint8)


def host_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return such memory as an array, for ``Writer(allocate=...)``."""
    array = as_array(host_tensor(nbytes))
    base: object = array.base
    if isinstance(base, torch.Tensor):
        _given_out[array.ctypes.data] = base
    return array


def tensor_at(address: int, nbytes: int) -> torch.Tensor:
    """Return a part of such memory as a tensor. Call inside `quiet()`.

    It is a view of the tensor that it was given out from: of other tensors on pinned memory some device packages do not
    know that it is pinned, and wait for each copy.
    """
    for start, memory in list(_given_out.items()):
        if start <= address and address + nbytes <= start + memory.numel():
            return memory[address - start : address - start + nbytes]
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def as_array(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a host tensor as an array, unseen by the program's modes: ``numpy()`` calls an op."""
    with quiet():
        array: NDArray[np.uint8] = tensor.numpy()
    return array
