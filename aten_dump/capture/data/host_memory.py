"""Host memory that bytes of tensors are copied to."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..devices import accelerator
from ..torch_internals.quiet import quiet


def host_tensor(nbytes: int) -> torch.Tensor:
    """Return host memory as a uint8 tensor; pinned where a device is in use, so that copies need not wait."""
    device = accelerator()
    with quiet():
        # Pinning memory would start the device's context in a program that has no use for it.
        if device is not None and getattr(torch.get_device_module(device), "is_initialized", bool)():
            try:
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:  # no memory that may be pinned is left, or the device has no such thing
                pass
        return torch.empty(nbytes, dtype=torch.uint8)


def host_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return such memory as an array, for ``Writer(allocate=...)``."""
    return as_array(host_tensor(nbytes))


def as_array(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a host tensor as an array, unseen by the program's modes: ``numpy()`` calls an op."""
    with quiet():
        array: NDArray[np.uint8] = tensor.numpy()
    return array
