"""Addresses of memory that is only read.

Theory of operation
    ``torch._lazy_clone`` makes a tensor that shares the memory of another until one of them is written to. Whoever asks
    for an address to write to gives the tensor memory of its own first: so do ``data_ptr()``, ``numpy()``, DLPack and
    some ops. The recorder must not cause that: it asks here, as torch's ops do for what they only read. Elsewhere such
    tensors have the same addresses as `data_ptr()` returns, 0 of one without memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from .quiet import quiet

is_copy_on_write: Final[Callable[[torch.Tensor], bool]] = torch._C._is_cow_tensor  # type: ignore[attr-defined]
# Of the storage that a tensor stands on.
address_of_storage: Final[Callable[[torch.Tensor], int]] = torch._C._data_address  # type: ignore[attr-defined]
lazy_clone: Final[Callable[[torch.Tensor], torch.Tensor]] = torch._lazy_clone


def _address_of(tensor: torch.Tensor) -> int:
    start = address_of_storage(tensor) if tensor.numel() else 0
    return start and start + int(tensor.storage_offset()) * tensor.element_size()


# Of the first element of a tensor, 0 of none. An older torch has no such function.
address_of: Final[Callable[[torch.Tensor], int]] = getattr(torch.Tensor, "const_data_ptr", _address_of)


def address_in(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage's first byte, of one in host memory."""
    with quiet():
        return address_of_storage(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
