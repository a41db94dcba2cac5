"""Statistics and hashes of values."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch

from ...store.records import HASH, STATISTICS, Hash, Statistics
from ...store.sink import Emit, Sink
from ...store.writing.checksums import HASHERS, HASHES
from ...store.writing.host_bytes import memory_at
from ..memory.geometry import byte_extent
from ..torch_internals.addresses import address_of
from ..torch_internals.quiet import quiet
from . import gather
from .byte_copies import elements_on_host
from .gather import GatheredBytes, can_gather, lie_apart, read_at_once
from .hash_functions import digest_of_elements
from .host_memory import as_array
from .statistics.one_pass import CODES, of_memory
from .statistics.one_tensor import compute
from .tensor_bytes import gathered, host_bytes

MOST_BYTES: Final = 1 << 36  # of an expanded tensor whose elements are hashed as often as they are repeated
_PIECE_BYTES: Final = 1 << 20  # which stay in cache from the copy to the hash: a quarter of the time


def statistics_of(
    emit: Emit, tensor: torch.Tensor, value: int, names: tuple[str, ...], seconds: dict[str, float]
) -> None:
    """Compute and emit the statistics of a value."""
    start = perf_counter()
    with quiet():
        numbers = _statistics_of_gathered(tensor, names) or compute(tensor, names)
    emit(Statistics(STATISTICS, value, numbers))
    seconds["statistics"] += perf_counter() - start


def _statistics_of_gathered(tensor: torch.Tensor, names: tuple[str, ...]) -> list[Any] | None:
    """Return the statistics of elements that do not lie in a row, copied into memory in use again: new memory, of which
    torch's copy is made, costs more than they do. None where `compute` is to make that copy.
    """
    if tensor.dtype not in CODES or not can_gather(tensor):
        return None
    return read_at_once(tensor, lambda address: of_memory(tensor.dtype, address, tensor.numel(), names))


def hash_of(emit: Emit, tensor: torch.Tensor, value: int, algorithm: str, seconds: dict[str, float]) -> None:
    """Compute and emit the hash of a value's elements in row-major order (conj and neg bits applied)."""
    start = perf_counter()
    with quiet():
        tensor = _with_bits_applied(repeated_once(tensor))
        digest = _digest_of_apart(tensor, algorithm) if lie_apart(tensor) else None
        if digest is None:
            _owner, data = host_bytes(tensor)
            digest = HASHES[algorithm](data)
    emit(Hash(HASH, value, digest))
    seconds["hash"] += perf_counter() - start


def repeated_once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that was expanded beyond all memory with each element once; any other as it is."""
    if tensor.layout is not torch.strided or tensor.numel() * tensor.element_size() <= MOST_BYTES:
        return tensor
    return _once(tensor)


def _with_bits_applied(tensor: torch.Tensor) -> torch.Tensor:
    """Apply the conj and neg bits of an expanded tensor to each of its elements once: torch does so to all of them."""
    if tensor.is_contiguous() or not (tensor.is_neg() or tensor.is_conj()):
        return tensor
    return _once(tensor).resolve_conj().resolve_neg().expand(tensor.shape)


def _once(tensor: torch.Tensor) -> torch.Tensor:
    once = [1 if stride == 0 else length for length, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(once, tensor.stride())


def _digest_of_apart(tensor: torch.Tensor, algorithm: str) -> bytes | None:
    """Return the hash of elements that do not lie in a row; None where torch is to copy all of them first."""
    nbytes = tensor.numel() * tensor.element_size()
    if not gather.IS_COMPILED:
        return _digest_in_pieces(tensor, algorithm, nbytes)
    layout = tuple(tensor.shape), tensor.stride()
    at_once = digest_of_elements(algorithm, (tensor.dtype, 0, nbytes, address_of(tensor), layout))
    if at_once is not None:
        return at_once
    hasher = HASHERS[algorithm]()
    for piece in GatheredBytes(tensor).pieces(nbytes):
        hasher.update(piece)
    return hasher.digest()


def _digest_in_pieces(tensor: torch.Tensor, algorithm: str, nbytes: int) -> bytes | None:
    """Return the hash of elements that do not lie in a row, copied piece by piece: an expanded tensor of gigabytes may
    stand on a few MB. None of those that torch copies faster at once, as they lie across their rows.
    """
    low, high = byte_extent(tensor)
    if tensor.stride(-1) > 1 and nbytes <= 2 * (high - low):
        return None
    hasher = HASHERS[algorithm]()
    count, step = tensor.numel(), _PIECE_BYTES // tensor.element_size()
    for first in range(0, count, step):
        piece = gathered(tensor, first, min(first + step, count), False)
        assert piece is not None, "the elements lie in a row"
        hasher.update(memory_at(address_of(piece), piece.numel()))
    return hasher.digest()


def hash_later(sink: Sink, tensor: torch.Tensor, value: int, algorithm: str) -> bool:
    """Take the hash of a value on a device when its bytes have come over; False where that cannot be."""
    return _when_on_host(sink, tensor, lambda host: Hash(HASH, value, HASHES[algorithm](as_array(host))))


def statistics_later(sink: Sink, tensor: torch.Tensor, value: int, names: tuple[str, ...]) -> bool:
    """Compute the statistics of a value on a device on the host when its bytes have come over; see `hash_later`.

    So it is with dtypes that `device_batches` does not know, such as complex ones, and on a device that saturates: it
    would cut sums that are too large, and set its overflow register, which is the program's.
    """
    dtype = tensor.dtype

    def statistics(host: torch.Tensor) -> Statistics:
        with quiet():
            return Statistics(STATISTICS, value, compute(host.view(dtype), names))

    return _when_on_host(sink, tensor, statistics)


def _when_on_host(sink: Sink, tensor: torch.Tensor, record: Callable[[torch.Tensor], Hash | Statistics]) -> bool:
    """Make a record of a tensor's bytes when they have come over; False where they cannot."""
    copied = elements_on_host(tensor)
    if copied is None:
        return False
    host, wait = copied

    def records() -> list[Hash | Statistics]:
        wait()
        return [record(host)]

    sink.later(records, host.numel())
    return True
