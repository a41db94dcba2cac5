"""Bytes of storages, on any device, copied to where the sink wants them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

import torch

from ...store.sink import Fill
from ...store.writing.host_bytes import HostBytes
from ...torch_names import without_bits
from ..memory.geometry import byte_extent
from ..team_threads import TEAM_BYTES, team_threads
from ..torch_internals.addresses import address_of_storage
from ..torch_internals.quiet import quiet
from . import gather, hash_functions
from .device_copies import Copier, Wait, copier_of
from .gather import GatheredBytes, can_gather
from .host_memory import host_tensor, tensor_at
from .tensor_bytes import gathered, row_major

GATHERED_BYTES: Final = 8 << 20  # at a time, of elements that do not lie in a row


class BytesInARow(HostBytes):
    """A `Fill` with bytes of host memory, copied by torch's threads, and the checksum taken, where that is compiled."""

    __slots__ = ()

    def _copy(self, offset: int, address: int, nbytes: int) -> None:
        if gather.IS_COMPILED and nbytes >= TEAM_BYTES:
            start, threads = self._address + offset, team_threads(nbytes)
            if hash_functions.IS_COMPILED and offset == 0 and address % hash_functions.COPY_ALIGNMENT == 0:
                self.checksum = hash_functions.copy_and_digest(start, nbytes, address, threads)
            else:
                gather.copy(start, 1, (nbytes,), (1,), 0, nbytes, address, threads)
        else:  # not by an op of torch's: in a forked child it may wait for threads that are not there
            super()._copy(offset, address, nbytes)


def copy_bytes(tensor: torch.Tensor, first: int, seconds: dict[str, float]) -> Fill:
    """Return a `fill` for the sink that copies the bytes of the storage of `tensor` from byte `first` on."""
    storage = tensor.untyped_storage()
    if tensor.device.type == "cpu":
        return BytesInARow(address_of_storage(tensor) + first, storage, seconds)

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


def copy_elements(tensor: torch.Tensor, count: int, seconds: dict[str, float]) -> Fill:
    """Return a `fill` for the sink that copies the first so many elements in row-major order, bits not applied."""
    copier = copier_of(tensor.device)
    if copier is None or tensor.is_quantized:
        with quiet():
            bare = without_bits(tensor)
            if can_gather(bare):
                return GatheredBytes(bare, seconds)
            flat = row_major(tensor, count)
            return copy_bytes(flat, int(flat.storage_offset()) * flat.element_size(), seconds)

    def fill_from_device(offset: int, address: int, nbytes: int) -> Wait:
        start = perf_counter()
        with quiet():
            wait = _begin(copier, tensor, offset, tensor_at(address, nbytes), resolved=False)
        seconds["copy"] += perf_counter() - start
        return wait

    return fill_from_device


def elements_on_host(tensor: torch.Tensor) -> tuple[torch.Tensor, Wait] | None:
    """Begin to copy all elements of a tensor on a device in row-major order, bits applied.

    Returns:
        Their bytes and what waits for them; None where that cannot be, or there are none.
    """
    copier = copier_of(tensor.device)
    if copier is None or not tensor.numel() or tensor.is_quantized:
        return None
    host = host_tensor(tensor.numel() * tensor.element_size())
    with quiet():
        return host, _begin(copier, tensor, 0, host, resolved=True)


def _begin(copier: Copier, tensor: torch.Tensor, offset: int, host: torch.Tensor, resolved: bool) -> Wait:
    """Begin to copy elements in row-major order, from a byte of theirs on: GATHERED_BYTES at a time where they do not
    lie in a row, so that this takes no more memory of the device.
    """
    size = tensor.element_size()
    waits = []
    for start in range(0, host.numel(), GATHERED_BYTES):
        past = min(start + GATHERED_BYTES, host.numel())
        made = gathered(tensor, (offset + start) // size, (offset + past) // size, resolved)
        if made is None:
            # Not view(-1): one element is contiguous whatever its stride, and keeps that.
            in_a_row = without_bits(tensor).as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            return copier.copy(in_a_row[offset : offset + host.numel()], host)
        waits.append(copier.copy(made, host[start:past], private=True))

    def wait() -> None:
        for one in waits:
            one()

    return wait


def copied_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in host memory, as they lie on its device; no memory of that is needed."""
    with quiet():
        first, past = byte_extent(tensor)
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(tensor.untyped_storage(), first, (past - first,), (1,))
        host = torch.empty(past - first, dtype=torch.uint8)
        host.copy_(raw)
        return host.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
