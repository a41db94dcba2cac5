"""What a tensor is, bit by bit, in a few bytes: dtype, geometry and a digest of its elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor

from tests.capture.bits import raw

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class Fingerprint(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    bits: tuple[bool, bool]  # conj and neg
    digest: str  # of the elements in row-major order; "" where there are none to read


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Of any tensor; runs ops of its own, so call it where no mode looks."""
    tensor = tensor.detach()
    if tensor._is_zerotensor():
        tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()
    if tensor.layout in _PARTS:
        digest = xxhash.xxh3_128_hexdigest(b"".join(raw(getattr(tensor, name)()) for name in _PARTS[tensor.layout]))
        return Fingerprint(tensor.dtype, tuple(tensor.shape), (), (False, False), digest)
    if tensor.is_nested:
        parts = tensor.unbind()
        digest = xxhash.xxh3_128_hexdigest(b"".join(raw(part) for part in parts))
        return Fingerprint(tensor.dtype, tuple(n for part in parts for n in part.shape), (), (False, False), digest)
    digest = "" if tensor.is_meta or not has_memory(tensor) else xxhash.xxh3_128_hexdigest(raw(tensor))
    return Fingerprint(tensor.dtype, tuple(tensor.shape), tensor.stride(), (tensor.is_conj(), tensor.is_neg()), digest)


def has_memory(tensor: Tensor) -> bool:
    """False for a storage that was shrunk under the tensor."""
    if tensor.numel() == 0:
        return True
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + tensor.storage_offset()
    return tensor.is_quantized or (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree of arguments or results, in the order the recorder sees them."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_of(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_of(item)
