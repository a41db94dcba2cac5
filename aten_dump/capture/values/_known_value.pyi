"""What the C file beside this one offers where it was compiled."""

from collections.abc import Mapping
from typing import Any

import torch

from ..memory.storages import StorageState

def use(
    exchange: object,
    untyped_storage: Any,
    nbytes: Any,
    is_neg: Any,
    storage_offset: Any,
    is_functional: Any,
    keyed_dtypes: frozenset[torch.dtype],
    /,
) -> bool: ...
def look(tensor: torch.Tensor, states: Mapping[int, StorageState], /) -> Any: ...
