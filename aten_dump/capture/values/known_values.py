"""The value of a tensor that was seen before, found for less where the C file beside this one was compiled.

Theory of operation
    To ask a tensor for its shape, strides, offset and dtype takes a call of torch's each, that makes an object which is
    compared and thrown away. Torch's DLPack functions for C say where it lies in one call. That, with the bytes of the
    storage, is the key under which a `StorageState` has the values of its present version, instead of the geometry.
    Which tensors have keys depends on them alone, so one that has is found by no other way. A storage may become
    copy-on-write, and be so no more, between two looks: its tensors keep their keys, though DLPack is not asked.

    Which storage it stands on, and which dispatch keys it has, is read where torch keeps it, found by samples: see the
    C file. Keys are had for plain tensors of host memory and CUDA: of others torch's functions raise errors, which take
    long. Tensors with a negative bit, which DLPack does not show, complex ones, which may have a conjugate bit, and
    those without elements, which have no address, have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from ..memory.storages import StorageState
from ..torch_internals.addresses import lazy_clone
from ..torch_internals.engine import is_functional_tensor, negative_view, parts_of

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6  # kinds of dtypes in DLPack
_KINDS: Final = {
    torch.float64: _FLOAT,
    torch.float32: _FLOAT,
    torch.float16: _FLOAT,
    torch.bfloat16: _BFLOAT,
    torch.uint8: _UINT,
    torch.int8: _INT,
    torch.int16: _INT,
    torch.int32: _INT,
    torch.int64: _INT,
    torch.bool: _BOOL,
}
KEYED_DTYPES: Final = frozenset(_KINDS)
_STRIDES: Final = (100, 1)  # some versions of DLPack's functions return others for a dimension of one element

_Look = Callable[[torch.Tensor, dict[int, Any]], Any]


def keyed_device(tensor: torch.Tensor) -> int:
    """Return which keys plain tensors with the dispatch keys of this one have: 1 in host memory, 2 of CUDA, else 0."""
    if tensor.is_neg() or is_functional_tensor(tensor):
        return 0
    return 1 if tensor.is_cpu else 2 if tensor.is_cuda else 0


def layout_of(tensor: torch.Tensor) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...]]:
    """Return the first byte of a tensor in its storage, its dtype as two numbers of DLPack, shape and strides."""
    dtype = tensor.dtype
    size = dtype.itemsize
    return int(tensor.storage_offset()) * size, _KINDS[dtype], size * 8, tensor.shape, tensor.stride()


def _samples() -> Iterator[tuple[Any, ...]]:
    """Yield tensors that differ, with what torch says of each: what is alike in all of them lies in the same place.
    The first are copy-on-write: what is alike in them, and in none of the others, marks them.
    """
    for nbytes in (11, 43, 89):
        shared = lazy_clone(torch.zeros(nbytes, dtype=torch.uint8, device="cpu"))
        views = [shared[start:] for start in range(nbytes % 5)]  # as many count the storage as theirs
        yield _sample(shared)
        del views
    with torch.inference_mode():
        yield _sample(torch.zeros(31, device="cpu"))
    for nbytes in (13, 29, 61, 253):
        yield _sample(torch.zeros(nbytes, dtype=torch.uint8, device="cpu")[3:])
    yield _sample(negative_view(torch.zeros(7, device="cpu")))
    yield _sample(torch.zeros(5, requires_grad=True, device="cpu"))
    yield _sample(torch.zeros(3, dtype=torch.complex64, device="meta").conj())
    yield _sample(torch.nn.Parameter(torch.zeros(2, 3, device="cpu")))


def _sample(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor, *parts_of(tensor)


def _found() -> _Look | None:
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        from ._known_value import look as found
        from ._known_value import use
    except ImportError:
        return None
    asks = torch.Tensor.untyped_storage, torch.Tensor.storage_offset, keyed_device, layout_of, KEYED_DTYPES
    attributes = tuple(vars(StorageState)[name] for name in ("place", "value", "others"))
    if exchange is None or not use(exchange, tuple(_samples()), *asks, attributes):
        return None
    described = found(torch.zeros(1, 2, device="cpu").as_strided((1, 2), _STRIDES), {})
    return found if described is not None and described[3][2] == _STRIDES else None


def _not_found(tensor: torch.Tensor, states: dict[int, Any]) -> Any:
    """Do nothing: callers ask FINDS first."""


_look = _found()
FINDS: Final[bool] = _look is not None
# Returns the value of a tensor, as all records name it, from the states of storages by address. Of one that is not
# there, seven things: storage, its address, its bytes, geometry, key, whether it is in host memory, and its `Elements`
# there, or None. Returns None for a tensor that cannot be keyed.
look: Final[_Look] = _look or _not_found
