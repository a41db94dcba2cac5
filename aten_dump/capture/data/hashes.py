"""Statistics and hashes of values."""

from __future__ import annotations

from time import perf_counter

import torch

from ...store.records import HASH, STATISTICS, Hash, Statistics
from ...store.sink import Emit, Sink
from ..torch_internals.quiet import quiet
from .device_copies import copier_of
from .hash_functions import HASHES
from .host_memory import as_array, host_tensor
from .statistics.one_tensor import compute
from .tensor_bytes import host_bytes, row_major


def statistics_of(
    emit: Emit, tensor: torch.Tensor, value: int, names: tuple[str, ...], seconds: dict[str, float]
) -> None:
    """Compute and emit the statistics of a value."""
    start = perf_counter()
    with quiet():
        numbers = compute(tensor, names)
    emit(Statistics(STATISTICS, value, numbers))
    seconds["statistics"] += perf_counter() - start


def hash_of(emit: Emit, tensor: torch.Tensor, value: int, algorithm: str, seconds: dict[str, float]) -> None:
    """Compute and emit the hash of a value's elements in row-major order (conj and neg bits applied)."""
    start = perf_counter()
    with quiet():
        owner, data = host_bytes(tensor)
        digest = HASHES[algorithm](data)
        del data, owner
    emit(Hash(HASH, value, digest))
    seconds["hash"] += perf_counter() - start


def hash_later(sink: Sink, tensor: torch.Tensor, value: int, algorithm: str) -> bool:
    """Have the hash of a value on a device taken when its bytes have come over; False where that cannot be."""
    copier = copier_of(tensor.device)
    if copier is None or not tensor.numel():
        return False
    with quiet():
        raw = row_major(tensor.resolve_conj().resolve_neg(), None).view(torch.uint8)
        host = host_tensor(raw.numel())
        wait = copier.copy(raw, host)

    def records() -> list[Hash]:
        wait()
        return [Hash(HASH, value, HASHES[algorithm](as_array(host)))]

    sink.later(records, raw.numel())
    return True
