"""Statistics and hashes of values: computed once, shared by the values that have the same elements."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch
import xxhash

from ..store.records import HASH, SAME, SAME_HASH, SAME_STATISTICS, STATISTICS, Hash, Same, Statistics
from .interning import Emit
from .memory import host_bytes
from .quiet import quiet
from .statistics import compute
from .storages import StorageState

HASHES: Final[dict[str, Callable[[Any], bytes]]] = {
    "xxh3": xxhash.xxh3_64_digest,
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def same_statistics(emit: Emit, tensor: torch.Tensor, state: StorageState, value: int) -> bool:
    """Share the statistics of another value that covers the same storage, if there is one."""
    other = state.whole_statistics.get(tensor.dtype)
    if other is None:
        return False
    emit(Same(SAME, value, other, SAME_STATISTICS))
    return True


def same_hash(emit: Emit, tensor: torch.Tensor, state: StorageState, value: int) -> bool:
    """Share the hash of another contiguous value that covers the same storage, if there is one."""
    other = state.whole_hash.get(tensor.dtype)
    if other is None or not tensor.is_contiguous():
        return False
    emit(Same(SAME, value, other, SAME_HASH))
    return True


def covers(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor as large as its storage has each of its elements once, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


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
