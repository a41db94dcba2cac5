from collections.abc import Mapping
from typing import Any

import torch

from ...store.records import Tree
from ..memory.storages import StorageState

def use(exchange: object, untyped_storage: Any, nbytes: Any, is_neg: Any, /) -> bool: ...
def key_of(tensor: torch.Tensor, /) -> bytes | None: ...
def find(tensor: torch.Tensor, states: Mapping[int, StorageState], /) -> Tree: ...
