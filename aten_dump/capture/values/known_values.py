"""The value of a tensor that was seen before, found for less where the C file beside this one was compiled.

Theory of operation
    To ask a tensor for its shape, strides, offset and dtype takes a call of torch's each, that makes an object which is
    compared and thrown away. Torch's DLPack functions for C tell where it lies in one call. That, with the bytes of the
    storage, is the key under which a `StorageState` has the values of its present version. A tensor whose key is not
    there is asked as ever, so keys need not be complete; but two tensors with the same key are the same value.

    Keys are had for plain tensors of host memory and CUDA: of others torch's functions raise errors, which take long.
    Tensors with a negative bit, which DLPack does not tell, complex ones, which may have a conjugate bit, and those
    without elements, which have no address, have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from ...store.records import Tree
from ..memory.storages import StorageState

_INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
KEYED_DTYPES: Final = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16, *_INTEGERS))
_exchange: Final[Any] = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)

try:
    from ._known_value import find as find
    from ._known_value import key_of as key_of
    from ._known_value import use
except ImportError:
    FINDS = False

    def find(tensor: torch.Tensor, states: Mapping[int, StorageState], /) -> Tree:
        """Do nothing: callers ask FINDS first."""

    def key_of(tensor: torch.Tensor, /) -> bytes | None:
        """Do nothing: callers ask FINDS first."""
else:
    FINDS = _exchange is not None and use(
        _exchange, torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes, torch.Tensor.is_neg
    )
