"""What the C file beside this one offers where it was compiled."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..memory.storages import StorageState

def use(
    exchange: object,
    samples: tuple[tuple[Any, ...], ...],
    untyped_storage: Any,
    storage_offset: Any,
    keyed_device: Callable[[torch.Tensor], int],
    layout_of: Callable[[torch.Tensor], tuple[int, int, int, tuple[int, ...], tuple[int, ...]]],
    keyed_dtypes: frozenset[torch.dtype],
    place_value_others: tuple[Any, ...],
    /,
) -> bool: ...
def look(tensor: torch.Tensor, states: Mapping[int, StorageState], /) -> Any: ...
