"""Bytes of storages, on any device, copied to where the sink wants them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from ...store.sink import Fill
from ...store.writing.host_bytes import HostBytes
from ..memory.geometry import byte_extent
from ..torch_internals.quiet import quiet
from .device_copies import copier_of
from .host_memory import tensor_at


def copy_bytes(tensor: torch.Tensor, first: int, seconds: dict[str, float]) -> Fill:
    """Return a `fill` for the sink that copies the bytes of the storage of `tensor` from byte `first` on."""
    storage = tensor.untyped_storage()
    if tensor.device.type == "cpu":
        return HostBytes(storage.data_ptr() + first, storage, seconds)

    copier = copier_of(tensor.device)

    def fill_from_device(offset: int, address: int, nbytes: int) -> Callable[[], None] | None:
        start = perf_counter()
        ready = None
        with quiet():
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, first + offset, (nbytes,), (1,))
            host = tensor_at(address, nbytes)
            if copier is None:
                host.copy_(raw)
            else:
                ready = copier.copy(raw, host)
        seconds["copy"] += perf_counter() - start
        return ready

    return fill_from_device


def copied_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in host memory, as they lie on its device; no memory of that is needed."""
    with quiet():
        first, past = byte_extent(tensor)
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(tensor.untyped_storage(), first, (past - first,), (1,))
        host = torch.empty(past - first, dtype=torch.uint8)
        host.copy_(raw)
        return host.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
